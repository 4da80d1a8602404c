"""share=balanced: a slow worker computes less of each step, and the training stays that of one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from harness import Run, assert_same, train


def shares_of(run: Run) -> dict[int, dict[int, int]]:
    """By step, counted from 0: samples that each worker computed."""
    shares: dict[int, dict[int, int]] = {}
    for event in run.of("times"):
        for place, samples in enumerate(event["samples"]):
            shares.setdefault(event["from"] + place, {})[event["worker"]] = samples
    return shares


@pytest.mark.parametrize("sync", ["allreduce", "server"])
def test_a_slow_worker_gets_less(sync: str, warm: int, tmp_path: Path) -> None:
    run = train("speeds", tmp_path / "run", workers=3, plan=f"share=balanced,sync={sync}", slow=1)
    assert_same(run, train("speeds", tmp_path / "alone", workers=1))
    changes = run.of("shares")
    assert changes and changes[0]["before"] == [16, 16, 16] and changes[0]["reason"] == "the start"
    shares = shares_of(run)
    first = changes[0]["step"] - 1
    assert all(shares[step] == {0: 16, 1: 16, 2: 16} for step in range(first) if step != 7)
    assert [shares[first][worker] for worker in range(3)] == changes[0]["after"]
    assert all(2 * shares[step][1] < min(shares[step][0], shares[step][2]) for step in range(first, 7))
    assert any(one["why"] == "shares" for one in run.of("position"))


def test_shares_follow_a_worker_that_slows_down(warm: int, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"steps": 24, "epochs": 4}
    run = train("speeds", tmp_path / "run", workers=2, plan="share=balanced", slow=0, first=10, **asked)
    assert_same(run, train("speeds", tmp_path / "alone", workers=1, **asked))
    shares = shares_of(run)
    assert 2 * shares[9][0] > 3 * shares[22][0], "as many as the other one had, then a quarter of that"
    assert 2 * shares[22][0] < shares[22][1]


def test_shares_go_to_those_that_are_there(warm: int, tmp_path: Path) -> None:
    """The slow worker is killed after the first change, and another one comes in its place."""
    workers: dict[int, int] = {}

    def kill(event: Any) -> None:
        if event.kind == "worker":
            workers[event.worker] = event.pid
        if event.kind == "step" and event.step == 7:
            os.kill(workers[1], signal.SIGKILL)

    asked: dict[str, Any] = {"steps": 40, "epochs": 6}
    run = train("speeds", tmp_path / "run", workers=3, plan="share=balanced,replace=true", slow=1, listen=kill, **asked)
    assert_same(run, train("speeds", tmp_path / "alone", workers=1, **asked))
    changes = run.of("shares")
    assert changes[0]["owners"] == [0, 1, 2]
    assert all(sum(one["after"]) == 48 and min(one["after"]) >= 1 for one in changes)
