"""Figures of a report: what is recorded, what is not in records of former versions, and that nothing is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cordee.watch.page import render
from cordee.watch.summarise import summarise
from cordee.watch.words import best
from records import T0, end, epoch, event, start, step, times, usage, worker, write


def test_learning_rate_and_gradient_norm(tmp_path: Path) -> None:
    """Of every step; a run of a version that did not record them has neither, and a norm may be missing."""
    made = [step(2.0 + 0.1 * one, one, lr=0.1 / one, grad_norm=None if one == 2 else float(one)) for one in (1, 2, 3)]
    summary = summarise(write(tmp_path / "new", [*start(0.0, 1), *made, end(3.0)]))
    assert summary.losses.values["lr"] == pytest.approx((0.1, 0.05, 0.1 / 3))
    assert summary.losses.values["grad_norm"] == summary.losses.values["grad_norm_high"] == (1.0, None, 3.0)
    assert (summary.lr, summary.grad_norm) == (pytest.approx(0.1 / 3), 3.0)
    page = render(summary, T0 + 3)
    assert "Learning rate" in page and "Gradient norm" in page
    for one in made:
        del one["lr"], one["grad_norm"]
    old = summarise(write(tmp_path / "old", [*start(0.0, 1), *made, end(3.0)]))
    assert set(old.losses.values) == {"loss", "loss_low", "loss_high"} and (old.lr, old.grad_norm) == (None, None)
    assert "Learning rate" not in render(old, T0 + 3) and "Gradient norm" not in render(old, T0 + 3)


def test_callbacks_are_a_part_of_their_own(tmp_path: Path) -> None:
    """In records of a former version they were counted as computing: those are read as they are."""
    called = times(2.1, 0, 0, [2.09], (5.0, 40.0, 10.0, 0.0), 12, callbacks=45.0)
    made = [*start(0.0, 1), step(2.1, 1), called, end(3.0)]
    summary = summarise(write(tmp_path / "new", made))
    assert summary.workers[0].time_s["callbacks"] == pytest.approx(0.045)
    assert summary.workers[0].step_ms == pytest.approx(100.0)
    assert summary.other_s["start"] == pytest.approx(2.0)
    assert '<i class="callbacks">' in render(summary, T0 + 3)
    del called["callbacks_ms"]
    old = summarise(write(tmp_path / "old", made))
    assert old.workers[0].time_s["callbacks"] == 0.0 and '<i class="callbacks">' not in render(old, T0 + 3)


def test_every_metric_has_its_tile(tmp_path: Path) -> None:
    names = ["loss", *(f"metric {one}" for one in range(6))]
    result = event("result", 2.5, result={"steps": 1, "test": dict.fromkeys(names, 0.25)})
    made = [*start(0.0, 1), step(2.0, 1), epoch(2.1, 0, 1, dict.fromkeys(names, 0.5)), result, end(3.0)]
    page = render(summarise(write(tmp_path, made)), T0 + 3)
    for name in names:
        assert f"<dt>Validation {name}</dt>" in page and f"<dt>Test {name}</dt>" in page


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, ""),
        (
            {"best": {"step": 1200, "epoch": 3, "metric": "accuracy", "value": 0.5}, "model": "best"},
            "accuracy 0.5000 after step 1,200, epoch 4; the model is that one",
        ),
        (
            {"best": {"step": 12, "epoch": 0, "metric": "error", "value": 0.25}, "model": "last"},
            "error 0.2500 after step 12, epoch 1; the model is that of the last step",
        ),
        ({"best": None}, ""),
    ],
)
def test_the_best_checkpoint_is_named(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    result = event("result", 2.5, result={"steps": 1, **more})
    summary = summarise(write(tmp_path, [*start(0.0, 1), step(2.0, 1), result, end(3.0)]))
    assert best(summary.result) == said
    assert ("best checkpoint" in render(summary, T0 + 3)) == bool(said) and said in render(summary, T0 + 3)


def test_a_worker_keeps_no_more_cores_busy_than_there_are(tmp_path: Path) -> None:
    """What it used before its first reading, to start for instance, took a time that nobody knows."""
    one = [*start(0.0, 1), usage(1.3, 0, 4.0), usage(2.3, 0, 4.9), step(2.5, 1)]
    again = [worker(60.0, 0), usage(60.3, 0, 50.0), usage(61.3, 0, 50.5), step(62.0, 2), end(63.0)]
    summary = summarise(write(tmp_path, [*one, *again]))
    assert summary.usage["0"].values["cores"] == (None, pytest.approx(0.9), None, pytest.approx(0.5))
    assert summary.usage["0"].values["memory_mb"] == (100.0,) * 4
    brief = summarise(write(tmp_path / "brief", [*start(0.0, 1), usage(1.1, 0, 4.0), usage(1.2, 0, 4.05), end(1.3)]))
    assert brief.workers[0].cpu_cores is None and brief.workers[0].cpu_s == 4.05
    made = [*start(0.0, 1), usage(1.1, 0, 4.0), step(1.15, 1), usage(1.2, 0, 4.05), end(1.3)]
    page = render(summarise(write(tmp_path / "one step", made)), T0 + 2)
    assert "<h3>Memory</h3>" in page and "<h3>Processor</h3>" not in page  # an empty plot tells nothing
