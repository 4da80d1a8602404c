"""Unequal shares for replicas that lie over several workers: the curve and the model of one process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import Run, assert_same, train
from strike import striking


def shares(run: Run) -> list[dict[int, int]]:
    """For each step the samples of each worker's share."""
    found: dict[int, dict[int, int]] = {}
    for event in run.of("times"):
        for place, samples in enumerate(event["samples"]):
            found.setdefault(event["from"] + place, {})[event["worker"]] = samples
    return [found[step] for step in sorted(found)]


@pytest.mark.parametrize(
    ("job", "plan", "settings", "first", "last"),
    [
        ("sliced", "tensor=2,proportions=5:3", {"kind": "blocks", "clip": 0.5, "epochs": 1}, (23, 14), (23, 14)),
        ("staged", "pipeline=2,proportions=1:3", {"samples": 41, "size": 20}, (5, 15), (0, 1)),
        ("sliced", "tensor=2,shard=params,proportions=1:3", {"kind": "blocks", "epochs": 1}, (9, 28), (9, 28)),
        ("sliced", "tensor=2,share=sampled,proportions=0:1", {"epochs": 1}, (0, 37), (0, 37)),  # BatchNorm, too
    ],
    ids=str,
)
def test_proportions_are_those_of_replicas(
    reference: Callable[..., Run],
    tmp_path: Path,
    job: str,
    plan: str,
    settings: dict[str, Any],
    first: tuple[int, int],
    last: tuple[int, int],
) -> None:
    run = train(job, tmp_path / "run", workers=4, plan=plan, **settings)
    assert_same(run, reference(job, **settings), loss=1e-10, tensor=1e-8)
    for step, (one, other) in ((0, first), (-1, last)):  # both workers of a replica compute its share
        assert shares(run)[step] == {0: one, 1: one, 2: other, 3: other}


def test_the_replicas_that_are_left_keep_their_proportions(reference: Callable[..., Run], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kind": "blocks", "save_steps": 3, "epochs": 4}
    plan, strike = "tensor=2,proportions=5:3:2", striking({3: 6}, signal.SIGKILL)
    run = train("sliced", tmp_path / "run", workers=6, plan=plan, listen=strike, **settings)
    assert sorted(event["worker"] for event in run.of("failure")) == [2, 3]
    assert_same(run, reference("sliced", **settings), loss=1e-10, tensor=1e-8)
    assert shares(run)[0] == {0: 19, 1: 19, 2: 11, 3: 11, 4: 7, 5: 7}
    assert shares(run)[-1] == {0: 26, 1: 26, 4: 11, 5: 11}  # 5:2
