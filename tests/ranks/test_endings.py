"""When a training ends: by steps, time, early stopping or an own condition, on all workers after the same step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import JOBS, Run, assert_same, train

Reference = Callable[..., Run]
ENDINGS = JOBS / "endings.py"


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("settings", "steps", "cause"),
    [
        ({"stop_steps": 13, "epochs": 2}, 13, "Stop(steps=13)"),
        ({"stop_steps": 13, "epochs": "none"}, 13, "Stop(steps=13)"),
        ({"loss_below": 1.5}, None, "Stop(when=...)"),
        ({"patience": 2}, None, "Stop(metric='loss', patience=2), after 2 evaluations without progress"),
        # 21 * 101 samples are more than one pass over 1,003
        ({"steps_per_epoch": 7, "epochs": 3}, 21, "all 3 epochs are done"),
    ],
)
def test_all_workers_end_after_the_same_step(
    settings: dict[str, Any], steps: int | None, cause: str, reference: Reference, tmp_path: Path
) -> None:
    alone = reference("endings", **settings)
    assert steps is None or alone.result["steps"] == steps
    assert alone.result["steps"] < 200
    three = train("endings", tmp_path / "run", workers=3, **settings)
    assert_same(three, alone)
    for run in (three, alone):
        assert run.result["ended"] == f"after step {alone.result['steps']}: {cause}"
        assert run.of("result")[-1]["result"]["ended"] == run.result["ended"]


def test_time_ends_it_everywhere_at_once(warm: int, tmp_path: Path) -> None:
    run = train("endings", tmp_path / "run", workers=3, minutes=0.02, epochs=100000)
    assert 0 < run.result["steps"] < 1_000_000
    assert run.result["steps"] == len(run.losses)
    assert run.result["ended"] == f"after step {len(run.losses)}: Stop(minutes=0.02)"


def test_endless_data_goes_on_over_the_end_of_the_data(reference: Reference) -> None:
    run = reference("endings", steps_per_epoch=7, epochs=3)
    assert {event["samples"] for event in run.of("step")} == {101}
    assert run.result["samples"] == 21 * 101
    assert [event["step"] for event in run.of("epoch")] == [7, 14, 21]


def test_callbacks_see_the_same_on_every_worker(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    train("endings", tmp_path / "run", workers=3, epochs=2, notes=notes)
    seen = [json.loads((notes / f"{worker}.json").read_text()) for worker in range(3)]
    assert seen[0] == seen[1] == seen[2]
    names = [call[0] for call in seen[0]]
    assert names[0] == "start" and names[-2:] == ["evaluation", "end"]
    assert names.count("step") == 20 and names.count("epoch") == 2 and names.count("evaluation") == 3
    assert [call[1] for call in seen[0] if call[0] == "step"] == list(range(20))
    assert [call[1] for call in seen[0] if call[0] == "evaluation"] == ["validation", "validation", "test"]


def test_a_batch_per_replica_is_fixed_at_the_first_start(reference: Reference, tmp_path: Path) -> None:
    """Three replicas of 33 and three times the learning rate; they stay when two workers go on."""
    asked = {"batch": 33, "batch_per": "replica", "scale_lr": "linear", "lr": 0.001}
    run = train("endings", tmp_path / "run", workers=3, stop_steps=4, **asked)
    assert [event["samples"] for event in run.of("step")] == [99] * 4
    resumed = train("endings", tmp_path / "run", workers=2, resume=True, **asked)
    assert_same(resumed, reference("endings", batch=99, lr=0.003))
