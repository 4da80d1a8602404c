"""What a worker holds of a model that is all blocks: an equal part of parameters, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Run, assert_same, train


@pytest.mark.parametrize(
    ("plan", "workers", "parts"),
    [
        ("tensor=2", 2, 2),
        ("pipeline=2", 4, 2),
        ("tensor=2,pipeline=2", 4, 4),
        ("shard=params,tensor=2", 4, 4),
        pytest.param("shard=gradients", 2, 2, marks=pytest.mark.slow),
        pytest.param("shard=optimizer", 3, 3, marks=pytest.mark.slow),
        pytest.param("tensor=2,pipeline=2", 8, 4, marks=pytest.mark.slow),
    ],
)
def test_every_worker_holds_its_part(
    reference: Callable[..., Run], tmp_path: Path, plan: str, workers: int, parts: int
) -> None:
    run, alone = train("tall", tmp_path / "run", workers=workers, plan=plan), reference("tall")
    assert_same(run, alone, loss=1e-10, tensor=1e-8)
    ideal = sum(tensor.nbytes for tensor in alone.tensors.values()) / parts
    held = {event["worker"]: event for event in run.of("held")}
    assert sorted(held) == list(range(workers))
    for event in held.values():
        for name, times in (("parameters", 1), ("gradients", 1), ("optimizer", 2)):
            assert event[name] == pytest.approx(times * ideal, rel=0.1), name
