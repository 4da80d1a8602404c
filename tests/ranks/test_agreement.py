"""Workers that were given different things: refused before they train, with what differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cordee.core.errors import JobError
from harness import run_script, train

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from torch import nn
import cordee
from cordee.core.errors import JobError
from cordee.train.agreement import agree_on
from cordee.train.session import stepper_of

def refused(case):
    try:
        case()
    except JobError as error:
        return str(error)
    return ""

def steps(s, other, *, samples=40, lr=0.1, wide=3, batch=10, epochs=1, draw=0):
    model = s.prepare(nn.Linear(wide, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x = np.random.default_rng(draw).normal(size=(samples, wide)).astype(np.float32)
    for batch in s.batches(cordee.data.arrays(x).train, batch=batch, epochs=epochs):
        s.backward(model(batch.x).square().mean())
        s.step(optimizer)

with cordee.session() as s:
    here = s.rank == 1
    cases = {"nothing": {}, "lr": {"lr": 0.2}, "batch": {"batch": 20}, "epochs": {"epochs": 2}, "draw": {"draw": 7},
             "samples": {"samples": 50}, "wide": {"wide": 4}}
    said = {name: refused(lambda: steps(s, here, **(more if here else {}))) for name, more in cases.items()}
    said["nothing again"] = refused(lambda: steps(s, here))
    said["many"] = refused(lambda: agree_on(stepper_of(s).team, {str(key): key * here for key in range(9)}))
    said["only here"] = refused(lambda: agree_on(stepper_of(s).team, {"extra": 1} if here else {}))
    Path(sys.argv[1], f"{s.rank}.json").write_text(json.dumps(said))
"""
JOB = """
import numpy as np
import torch
from torch import nn
import cordee
from cordee.train.session import stepper_of

def job(what: str = "") -> cordee.Job:
    other = cordee.World.from_env().rank == 1
    x = np.random.default_rng(3 if other and what == "data" else 0).normal(size=(60, 5)).astype(np.float32)
    return cordee.Job(
        model=lambda: nn.Linear(5, 1), data=cordee.data.arrays(x, x[:, :1], test=0.2), batch=12,
        epochs=2 if other and what == "epochs" else 1, loss=nn.functional.mse_loss, clip=0.5 if what == "lr" else None,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.3 if other and what == "lr" else 0.1),
    )
"""


def test_what_differs_is_told_by_all_workers(warm: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    run_script(tmp_path / "script.py", tmp_path / "run", str(tmp_path), workers=3)
    said, *others = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3))
    assert all(other == said for other in others)  # so that they end together
    assert (said.pop("nothing"), said.pop("nothing again")) == ("", "")
    wanted = {
        "lr": "optimizer's settings: lr 0.1 and lr 0.2. Give",
        "batch": "batch: 10 and 20. Give",
        "epochs": "epochs: 1 and 2. Give",
        "draw": "data: 40 samples with fingerprint ",
        "samples": "and 50 samples with fingerprint ",
        "wide": "model: 4 parameters with fingerprint ",
        "many": "1: 0 and 1; 2: 0 and 2; 3: 0 and 3; 4: 0 and 4 and 4 more. Give",
        "only here": "extra: nothing and 1. Give",
    }
    assert {name for name, words in wanted.items() if words not in said[name]} == set()
    assert all("worker 0 on " in message and "worker 1 on " in message for message in said.values())


@pytest.mark.parametrize(
    ("what", "told"),
    [("data", r"train data: 48 samples .* test data"), ("epochs", "epochs: 1 and 2"), ("lr", r"lr 0\.1 and lr 0\.3")],
)
def test_a_job_that_is_another_one_elsewhere_is_not_trained(what: str, told: str, warm: int, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    with pytest.raises(JobError, match=told):
        train(tmp_path / "job.py", tmp_path / "run", workers=2, what=what)


def test_the_same_job_is_trained(warm: int, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    assert train(tmp_path / "job.py", tmp_path / "run", workers=2).result["steps"] == 4


def test_what_does_not_add_up_is_said(warm: int, tmp_path: Path) -> None:
    spoilt = """
class Spoils(cordee.Callback):
    def on_end(self, session):
        stepper_of(session).ledger.lost += 3
"""
    job = JOB.replace("def job", spoilt + "\ndef job").replace("batch=12,", "batch=2, callbacks=[Spoils()],")
    (tmp_path / "job.py").write_text(job)
    run = train(tmp_path / "job.py", tmp_path / "run", workers=3)
    said = "\n".join(event["message"] for event in run.of("warning"))
    assert "3 samples were lost and 0 repeated" in said
    assert "a step has 2 samples: 1 workers have nothing to do" in said
    assert run.result["samples_lost"] == 3
