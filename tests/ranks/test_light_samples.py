"""Samples that weigh nothing, among them the first ones, by which a split is compared with the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import assert_same, train


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        ("tensor=2", "llama"),
        ("pipeline=2", "gpt2"),
        pytest.param("shard=params", "llama", marks=pytest.mark.slow),
        pytest.param("tensor=2", "gpt2", marks=pytest.mark.slow),
    ],
)
def test_equals_one_process(warm: int, tmp_path: Path, plan: str, kind: str) -> None:
    run = train("masked", tmp_path / "run", workers=2, plan=plan, kind=kind)
    assert_same(run, train("masked", tmp_path / "alone", kind=kind), loss=1e-10, tensor=1e-8)
    (event,) = run.of("shard" if "shard" in plan else "cut")
    assert event["gradient"] is not None and event["gradient"] < 1e-9, "gradients were compared"
