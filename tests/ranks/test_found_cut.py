"""Models whose cut over workers is found by itself train as in one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness import Run, assert_same, train

LLAMA = r"(q|k|v|gate|up)_proj column|(o|down)_proj row"
CUTS = {
    "gpt": r"query_key_value column|out row|mlp.0 column|mlp.2 row",
    "llama": LLAMA,
    "llama-uneven": r"(gate|up)_proj column|down_proj row",
    "qwen3": LLAMA,
    "bert": r"(query|key|value|intermediate.dense|pooler.dense) column|(output.dense|classifier) row",
    "gpt2": r"c_(attn|fc) column|c_proj row",
    "vit": r"((q|k|v)_proj|fc1) column|(o_proj|fc2) row",
    "encoder": r"self_attn heads|linear1 column|linear2 row",
    "reader": r"attention heads",
}
"""Which layers are cut, by the ends of their names."""
FEW = {
    "gpt": 8,
    "llama": 14,
    "llama-uneven": 6,
    "qwen3": 14,
    "bert": 14,
    "gpt2": 8,
    "vit": 12,
    "encoder": 3,
    "reader": 1,
}


def same(run: Run, reference: Run) -> None:
    assert_same(run, reference, loss=1e-10, tensor=1e-8)
    assert len(run.losses) == 20 and run.losses[0] != run.losses[-1]


def check_cut(run: Run, kind: str) -> None:
    (event,) = run.of("cut")
    names = [" ".join(one) for one in event["layers"]]
    assert len(names) == FEW[kind] and all(re.search(f"({CUTS[kind]})$", name) for name in names), names
    assert event["loss"] < 1e-12 and event["gradient"] < 1e-9
    assert [one["message"] for one in run.of("warning")] == []


def settings_of(kind: str) -> dict[str, Any]:
    return {"stop_steps": 20, "clip": 0.5, "tied": "false"} if kind == "gpt" else {"kind": kind}


@pytest.mark.parametrize(
    "kind",
    [
        "gpt",
        "llama",
        "bert",
        "encoder",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("llama-uneven", "qwen3", "gpt2", "vit", "reader")),
    ],
)
def test_equals_one_process(warm: int, tmp_path: Path, kind: str) -> None:
    job = "gpt" if kind == "gpt" else "cut_models"
    reference = train(job, tmp_path / "alone", **settings_of(kind))
    run = train(job, tmp_path / "two", workers=2, plan="tensor=2", **settings_of(kind))
    same(run, reference)
    check_cut(run, kind)
    same(train(job, tmp_path / "four", workers=4, plan="tensor=2", **settings_of(kind)), reference)
