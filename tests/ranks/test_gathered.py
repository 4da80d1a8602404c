"""Stages whose state is sharded: the curve and the model of one process, checkpoints for any plan, and losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import Run, assert_same, train

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("staged", {"kind": "mlp", "stop_steps": 20}),
    "group": ("staged", {"kind": "group", "stop_steps": 20}),
    "gpt": ("gpt", {"stop_steps": 20, "clip": 0.5, "epochs": 3}),
    "llama": ("cut_models", {"kind": "llama"}),
    "bert": ("cut_models", {"kind": "bert"}),
}
FAST = [
    ("gpt", "pipeline=2,shard=optimizer", 4),
    ("llama", "pipeline=2,shard=params,schedule=interleaved", 4),
    ("mlp", "pipeline=2,shard=gradients,schedule=zero-bubble,shards=2", 8),
    ("gpt", "tensor=2,pipeline=2,shard=optimizer", 8),
]


def start(model: str, out: Path, **more: Any) -> Run:
    job, settings = MODELS[model]
    return train(job, out, **{**settings, **more})


@pytest.mark.parametrize(("model", "plan", "workers"), FAST)
def test_equals_one_process(warm: int, tmp_path: Path, model: str, plan: str, workers: int) -> None:
    run, alone = start(model, tmp_path / "run", workers=workers, plan=plan), start(model, tmp_path / "alone")
    assert_same(run, alone, loss=1e-10, tensor=1e-8)
