"""A worker is lost, and no whole replica is left: the run ends with commands that resume it, exactly."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from alone import command
from cordee.core.errors import WorkersLost
from harness import JOBS, Run, distance

AS_STARTED, ON_WHAT_IS_LEFT = 0, 1


@pytest.mark.parametrize(
    ("plan", "workers", "which", "then"),
    [
        ("tensor=2", 2, AS_STARTED, (2, "tensor=2")),
        ("pipeline=2,schedule=interleaved", 2, ON_WHAT_IS_LEFT, (1, "sync=allreduce")),
        ("pipeline=2,shard=optimizer", 4, ON_WHAT_IS_LEFT, (3, "shard=params")),
    ],
)
def test_what_a_lost_run_says_resumes_it(
    reference: Callable[..., Run], tmp_path: Path, plan: str, workers: int, which: int, then: tuple[int, str]
) -> None:
    (file := tmp_path / "once").touch()
    words = ("train", JOBS / "part_lost.py", "--set", f"file={file}", "--out", tmp_path / "run", "--threads", "1")
    lost = command(*words, "--workers", str(workers), "--plan", plan)
    assert lost.returncode == WorkersLost.code, lost.stderr
    said = lost.stderr.rstrip().splitlines()[-1]
    told = r"part of the model.*; to go on after step [78]: cordee train "  # the save of step 8 may be cut off
    assert re.search(told, said), said
    commands = [shlex.split(one)[1:] for one in re.findall(r"cordee train [^;]*", said)]
    assert commands[which][:2] == ["train", str(words[1])]
    options = dict(zip(commands[which][2:-1:2], commands[which][3:-1:2], strict=True))
    assert (int(options["--workers"]), options["--plan"]) == then

    resumed = command(*commands[which])
    assert resumed.returncode == 0, resumed.stderr
    run, alone = Run(tmp_path / "run"), reference("part_lost")
    losses = {event["step"]: event["loss"] for event in run.of("step")}  # of a step that was done again, the last
    assert sorted(losses) == list(range(1, 21))
    assert [losses[step] for step in sorted(losses)] == pytest.approx(alone.losses, rel=1e-10)
    assert distance(run, alone) < 1e-8
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert (run.result["workers"], run.result["samples_lost"]) == (then[0], 0)
