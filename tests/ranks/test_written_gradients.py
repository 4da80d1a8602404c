"""Optimizers that use the gradients as memory of their own train as in one process; see also the hand-over's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Run, assert_same, train

Reference = Callable[..., Run]


@pytest.mark.parametrize(
    ("optimizer", "workers", "plan"),
    [
        ("nesterov", 3, "share=sampled,bucket_mb=0.01"),
        pytest.param("decayed", 3, "proportions=2:0:1", marks=pytest.mark.slow),
        ("adagrad", 2, "auto"),
        ("adam", 3, "overlap=false"),
        pytest.param("careless", 3, "bucket_mb=0.01", marks=pytest.mark.slow),
        pytest.param("fading", 2, "auto", marks=pytest.mark.slow),
    ],
)
def test_an_optimizer_may_write_into_gradients(
    optimizer: str, workers: int, plan: str, reference: Reference, tmp_path: Path
) -> None:
    run = train("placed", tmp_path / "run", workers=workers, plan=plan, optimizer=optimizer)
    assert_same(run, reference("placed", optimizer=optimizer))
