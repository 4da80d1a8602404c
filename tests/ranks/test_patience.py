"""Early stopping over a resume: a run that has ended by patience is over, however often it is resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Run, assert_same, distance, train

Reference = Callable[..., Run]
FAST = {"lr": 0.01}
"""Then the sixth epoch is the second without progress."""


def ended(reference: Reference, **settings: int) -> Run:
    run = reference("endings", **FAST, **settings)
    assert run.result["steps"] < 200, "patience did not end it"
    return run


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_that_ended_by_patience_ends_at_once_when_resumed(
    workers: int, reference: Reference, tmp_path: Path
) -> None:
    alone = ended(reference, patience=2)
    first = train("endings", tmp_path / "run", **FAST, workers=2, patience=2)
    steps, tensors = len(first.of("step")), first.tensors
    again = train("endings", tmp_path / "run", **FAST, workers=workers, patience=2, resume=True)
    assert len(again.of("step")) == steps and len(again.of("epoch")) == steps // 10
    for name in ("steps", "epochs", "samples", "loss", "validation", "order_sha256", "params_sha256", "ended"):
        assert again.result[name] == first.result[name], name
    assert all((again.tensors[name] == tensor).all() for name, tensor in tensors.items())
    assert_same(again, alone)


def test_with_more_patience_it_goes_on(reference: Reference, tmp_path: Path) -> None:
    """And ends where a run that had it from the start ends: what was waited already counts."""
    train("endings", tmp_path / "run", **FAST, workers=2, patience=2)
    run = train("endings", tmp_path / "run", **FAST, workers=3, patience=3, resume=True)
    alone = ended(reference, patience=3)
    assert alone.result["steps"] > ended(reference, patience=2).result["steps"]
    assert_same(run, alone)
    assert distance(run, ended(reference, patience=2)) > 1e-6


@pytest.mark.parametrize("stop", [pytest.param(45, marks=pytest.mark.slow), 55])
def test_a_run_that_was_stopped_while_it_waited_has_no_more_patience_than_before(
    stop: int, reference: Reference, tmp_path: Path
) -> None:
    """`stop` steps are in the middle of an epoch: the validation at that end is not one of those that count."""
    alone = ended(reference, patience=2)
    assert alone.result["steps"] > stop
    train("endings", tmp_path / "run", **FAST, workers=2, patience=2, stop_steps=stop)
    assert_same(train("endings", tmp_path / "run", **FAST, workers=3, patience=2, resume=True), alone)
