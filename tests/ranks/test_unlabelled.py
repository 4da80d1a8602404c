"""Samples that weigh nothing in the loss are still part of what BatchNorm normalises by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness import Run, assert_same, train


def test_shares_without_any_label_train_as_one_process(reference: Callable[..., Run], tmp_path: Path) -> None:
    assert_same(train("unlabelled", tmp_path / "run", workers=3), reference("unlabelled"))
