"""A worker that holds a part of a replica is lost before the first step: the whole replicas train, as one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cordee.core.errors import WorkersLost
from harness import Run, assert_same, train

Reference = Callable[..., Run]


@pytest.mark.parametrize(
    ("plan", "workers", "dies", "left"),
    [
        ("tensor=2", 4, "1:job", 2),  # before the workers have met
        ("tensor=2", 4, "2:mesh:1", 2),  # while torch's group of all workers is made
        ("shard=params,shards=2", 6, "5:mesh:2", 4),  # while those within replicas are
        ("shard=params,shards=2", 6, "0:mesh:1,3:mesh:1", 2),
    ],
)
def test_whole_replicas_are_left(
    plan: str, workers: int, dies: str, left: int, reference: Reference, tmp_path: Path
) -> None:
    run = train("early", tmp_path / "run", workers=workers, plan=plan, dies=dies)
    assert len(run.of("failure")) == workers - left
    assert len(run.of("regroup")[-1]["workers"]) == left
    assert_same(run, reference("early"), loss=1e-10, tensor=1e-8)


def test_no_whole_replica_is_left(warm: int, tmp_path: Path) -> None:
    with pytest.raises(WorkersLost, match="part of the model"):
        train("early", tmp_path / "run", workers=2, plan="tensor=2", dies="1:job")
