"""A slower worker gets fewer layers of a pipeline, and the run is that of one process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from harness import assert_same, train


@pytest.mark.parametrize(
    ("plan", "workers", "slow", "stages"),
    [
        ("pipeline=2", 2, 0, {0}),
        ("pipeline=2", 4, 3, {1}),  # in one of two replicas: the same stage of the other one waits for it anyway
        ("pipeline=2,schedule=interleaved", 2, 1, {1, 3}),
    ],
    ids=str,
)
def test_a_slow_worker_gets_fewer_layers(
    warm: int, tmp_path: Path, plan: str, workers: int, slow: int, stages: set[int]
) -> None:
    run = train("slow_worker", tmp_path / "run", workers=workers, plan=plan, slow=slow)
    assert_same(run, train("slow_worker", tmp_path / "alone"), loss=1e-10, tensor=1e-8)
    (event,) = run.of("cut")
    layers = Counter(stage for _, stage, _ in event["units"])
    fast = set(layers) - stages
    assert set(layers) == set(range(len(event["speeds"])))
    assert max(layers[one] for one in stages) < min(layers[one] for one in fast), event
    assert max(event["speeds"][one] for one in stages) < 0.5 < min(event["speeds"][one] for one in fast), event
