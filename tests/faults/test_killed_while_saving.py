"""The whole run is killed while a checkpoint is written in the background: the one before is whole and used."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from harness import JOBS, Run, start, train, until


def being_written(out: Path) -> set[str]:
    """Checkpoints that are not in place yet, some of whose bytes are."""
    found = (out / "checkpoints").glob(".*/*")
    return {one.parent.name for one in found if one.name.endswith(".safetensors")}


def last_step(out: Path) -> int:
    """Of the newest checkpoint that stands."""
    return max((int(one.name.removeprefix("step-")) for one in (out / "checkpoints").glob("step-*")), default=0)


RARE = pytest.mark.slow


@pytest.mark.parametrize(
    ("plan", "workers"),
    [("shard=optimizer", 2), pytest.param("auto", 1, marks=RARE), pytest.param("tensor=2", 2, marks=RARE)],
)
def test_killed_while_saving(warm: int, tmp_path: Path, plan: str, workers: int) -> None:
    """Three times in one run, launcher and workers, at instants that are drawn."""
    draw, out = random.Random(str((plan, workers))), tmp_path / "run"
    words = ["train", JOBS / "heavy.py", "--out", out, "--workers", str(workers), "--threads", "1", "--plan", plan]
    caught = 0
    for turn in range(3):
        with start(*words, *(["--resume"] if turn else [])) as process:
            began = last_step(out)
            until(lambda began=began: process.poll() is not None or last_step(out) > began)
            time.sleep(draw.uniform(0.0, 0.05))
            until(lambda: process.poll() is not None or being_written(out))
            for one in (process.pid, *(event["pid"] for event in Run(out).of("worker")[-workers:])):
                with contextlib.suppress(ProcessLookupError):  # workers end when their launcher does
                    os.kill(one, signal.SIGKILL)
            said = process.communicate()
        assert process.returncode == -signal.SIGKILL, said
        caught += bool(being_written(out))
    assert caught, "no checkpoint was being written"
    run = train("heavy", out, workers=workers, plan=plan, resume=True)
    alone = train("heavy", tmp_path / "alone", save_steps=100)
    # The line of a step goes through the launcher, which may be killed with it: the checkpoint has that step anyway.
    losses = {event["step"]: event["loss"] for event in run.of("step")}
    assert len(losses) >= len(alone.losses) - 3
    assert list(losses.values()) == pytest.approx([alone.losses[step - 1] for step in losses], rel=1e-10)
    assert run.result["order_sha256"] == alone.result["order_sha256"]
