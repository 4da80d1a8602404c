"""The best checkpoint is one whose metric was measured on its own weights, not on those of an earlier step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cordee.state.checkpoint import Checkpoints
from cordee.state.layout import read_index
from harness import Run, train

Reference = Callable[..., Run]
EPOCH = 10
"""Steps of an epoch; validation is at its end."""


def metrics_by_step(run: Run) -> dict[int, dict[str, float]]:
    return {step: read_index(path)["metrics"] for step, path in Checkpoints(run.out / "checkpoints").list()}


def sizes(run: Run) -> list[float]:
    return [event["validation"]["size"] for event in run.of("epoch")]


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_checkpoint_between_two_validations_has_no_metric(workers: int, warm: int, tmp_path: Path) -> None:
    run = train("best", tmp_path / "run", workers=workers, save_steps=4, keep_last=100)
    found = metrics_by_step(run)
    assert sorted(found) == [4, 8, 10, 12, 16, 20, 24, 28, 30]
    assert {step for step, metrics in found.items() if metrics} == {10, 20, 30}
    assert [found[step]["size"] for step in (10, 20, 30)] == sizes(run)


def test_the_best_is_kept_and_not_the_last_one_before_a_worse(reference: Reference, tmp_path: Path) -> None:
    """Also over a resume: the metric that a checkpoint brings along is not measured anew."""
    out = tmp_path / "run"
    train("best", out, workers=2, save_steps=4, stop_steps=14)
    run = train("best", out, workers=3, save_steps=4, resume=True)
    values = sizes(run)
    assert len(values) == 3 and values[0] < min(values[1:])
    checkpoints = Checkpoints(out / "checkpoints", keep_last=1, keep_best="-size")
    assert [step for step, _ in checkpoints.list()] == [10, 30]
    best = checkpoints.best()
    assert best is not None and best.name == "step-00000010"
    kept = checkpoints.read(10).weights()
    alone = reference("best", stop_steps=EPOCH).tensors
    assert kept.keys() == alone.keys()
    for name, tensor in kept.items():
        torch.testing.assert_close(tensor, torch.from_numpy(alone[name]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("save_steps", [None, 7])  # 7: the last step is saved before it is validated
def test_a_run_that_is_stopped_within_an_epoch_has_the_metric_of_its_end(
    save_steps: int | None, warm: int, tmp_path: Path
) -> None:
    asked = {"save_steps": save_steps, "stop_steps": 14, "keep_last": 100, "keep_best": None}
    run = train("best", tmp_path / "run", workers=2, **asked)
    validation = run.result["validation"]
    assert metrics_by_step(run)[14] == validation != metrics_by_step(run)[10]
    again = train("best", tmp_path / "run", workers=3, resume=True, **asked)
    assert again.result["validation"] == validation


def test_the_best_stays_the_best_when_a_complete_run_is_resumed(warm: int, tmp_path: Path) -> None:
    """Here the last checkpoint is the best."""
    run = train("best", tmp_path / "run", workers=2, keep_best="accuracy")
    before = metrics_by_step(run)
    assert list(before) == [30] and before[30]["accuracy"] > 0.8
    again = train("best", tmp_path / "run", workers=2, keep_best="accuracy", resume=True)
    assert again.result["params_sha256"] == run.result["params_sha256"]
    assert metrics_by_step(again) == before
