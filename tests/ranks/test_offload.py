"""Whole runs on a GPU with less of its memory equal those with all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import assert_same, train


@pytest.mark.gpu
@pytest.mark.parametrize(
    "plan", ["offload=optimizer,recompute=block", "offload=all", "offload=all,recompute=selective"]
)
def test_the_same_training_with_less_memory(warm: int, tmp_path: Path, plan: str) -> None:
    reference = train("gpt", tmp_path / "plain", stop_steps=6)
    assert_same(train("gpt", tmp_path / "less", plan=plan, stop_steps=6), reference, loss=1e-10, tensor=1e-8)
    first = train("gpt", tmp_path / "resumed", plan=plan, stop_steps=3)
    assert first.result["steps"] == 3
    run = train("gpt", tmp_path / "resumed", resume=True, stop_steps=6)
    assert run.losses[-3:] == pytest.approx(reference.losses[-3:], rel=1e-10)
