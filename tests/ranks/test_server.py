"""`sync=server`: parameter servers train what one process trains, and their state is an ordinary checkpoint's."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import CordeeError, ModelError, PlanError
from harness import DEADLINE_S, Run, assert_same, command, job_file, start, train

Reference = Callable[..., Run]


@pytest.mark.parametrize(
    ("job", "workers", "plan", "settings"),
    [
        ("mlp", 2, "servers=2", {"schedule": True}),
        ("mlp", 3, "proportions=5:0:2,servers=3", {"optimizer": "momentum", "clip": 0.5}),
        ("mlp", 2, "backups=false,accumulate=3", {"idle": "some"}),
        ("cnn", 2, "proportions=5:2,servers=2", {}),
        ("gpt", 3, "share=sampled,servers=2,overlap=false", {"tokens": True}),
    ],
)
def test_servers_train_as_one_process(
    job: str, workers: int, plan: str, settings: dict[str, Any], reference: Reference, tmp_path: Path
) -> None:
    run = train(job, tmp_path / "run", workers=workers, plan=f"sync=server,{plan}", **settings)
    assert_same(run, reference(job, **settings))


def test_a_run_changes_from_all_reduce_to_servers_and_back(reference: Reference, tmp_path: Path) -> None:
    settings, out = {"epochs": 3, "schedule": True}, tmp_path / "run"
    train("mlp", out, workers=2, stop_steps=7, **settings)
    train("mlp", out, workers=3, plan="sync=server,servers=2", resume=True, stop_steps=14, **settings)
    train("mlp", out, workers=1, plan="sync=server,servers=3", resume=True, stop_steps=21, **settings)
    run = train("mlp", out, workers=2, resume=True, **settings)
    assert_same(run, reference("mlp", **settings))


def test_servers_on_two_hosts(reference: Reference, tmp_path: Path) -> None:
    """Their connections are encrypted; every shard has its two holders on different hosts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting = ("--rendezvous", f"127.0.0.1:{free.getsockname()[1]}", "--nodes", "2")
    asked = ("train", job_file("mlp"), "--plan", "sync=server,servers=2", "--workers", "1", "--threads", "1", *meeting)
    hosts = [start(*asked, "--out", tmp_path / name, cwd=tmp_path) for name in ("one", "two")]
    said = [host.communicate(timeout=DEADLINE_S) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    run = Run(next(tmp_path / name for name in ("one", "two") if (tmp_path / name / "result.json").exists()))
    assert sorted((event["shard"], event["what"]) for event in run.of("server")) == [
        (0, "backup"), (0, "first"), (1, "backup"), (1, "first")
    ]  # fmt: skip
    assert_same(run, reference("mlp"))


def test_a_worker_is_lost_and_another_one_comes_in(tmp_path: Path) -> None:
    alone = train("replaced", tmp_path / "alone", starts=tmp_path / "nobody")
    settings = {"starts": tmp_path / "starts", "fates": "1:4:SIGKILL", "waits": "9"}
    run = train("replaced", tmp_path / "run", workers=2, plan="replace=true,sync=server", **settings)
    assert [(event["worker"], event["replaces"]) for event in run.of("joined")] == [(2, 1)]
    assert_same(run, alone)


SCRIPT = """
import cordee, torch
with cordee.session(plan="sync=server,servers=2") as s:
    model = s.prepare(torch.nn.Linear(64, 10))
"""


def test_servers_that_no_launcher_has_started(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = command("run", script, "--workers", "2", cwd=tmp_path)
    assert done.returncode == PlanError.code and "cordee run --plan sync=server,servers=2" in done.stderr
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=DEADLINE_S)
    assert "only cordee train and cordee run start" in done.stderr


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("servers=2", "set sync=server"),
        ("sync=server,precision=fp16", "precision=fp16"),
        ("sync=server,tensor=2", "tensor=2 does not work with sync=server"),
        ("sync=server,compress=powersgd", "compress=powersgd needs a sum over all replicas"),
    ],
)
def test_plans_that_are_refused(plan: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=words):
        train("mlp", tmp_path / "run", workers=2, plan=plan)


OPTIMIZER = """
import torch
from torch import nn
import cordee

class Mine(torch.optim.SGD):
    pass

x, y = torch.randn(200, 8), torch.randint(0, 3, (200,))
job = cordee.Job(
    model=lambda: nn.Linear(8, 3), loss=nn.functional.cross_entropy, data=(x, y), batch=20, epochs=1,
    optimizer=lambda params: Mine(params, lr=0.1),
)
"""


def test_an_optimizer_that_servers_cannot_import(tmp_path: Path) -> None:
    """Beside the job they find it."""
    job = tmp_path / "job.py"
    job.write_text(OPTIMIZER)
    with pytest.raises(CordeeError, match="cannot import the optimizer Mine"):
        train(job, tmp_path / "run", workers=2, plan="sync=server")
    (tmp_path / "mine.py").write_text("import torch\n\nclass Mine(torch.optim.SGD):\n    pass\n")
    job.write_text(OPTIMIZER.replace("class Mine(torch.optim.SGD):\n    pass", "from mine import Mine"))
    assert train(job, tmp_path / "again", workers=2, plan="sync=server").result["steps"] == 10


@pytest.mark.parametrize("plan", ["sync=server", "sync=server,mode=async"])
def test_sparse_gradients_are_refused(plan: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a gradient is sparse"):
        train("rows", tmp_path / "run", workers=2, plan=plan)
