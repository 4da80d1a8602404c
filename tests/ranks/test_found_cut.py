"""Models whose cut over workers is found by itself train as in one process."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordee.state.layout import read_index
from harness import Run, assert_same, distance, train

LLAMA = r"(q|k|v|gate|up)_proj column|(o|down)_proj row"
CUTS = {
    "mlp": r"^0 column|^2 row",
    "lenet": r"^8 column|^10 row",
    "norm": r"^3 column|^5 row",
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
COUNTS = {
    "mlp": 2,
    "lenet": 2,
    "norm": 2,
    "gpt": 8,
    "llama": 14,
    "llama-uneven": 6,
    "qwen3": 14,
    "bert": 14,
    "gpt2": 8,
    "vit": 12,
}
COUNTS |= {"encoder": 3, "reader": 1}
CUTS |= {
    "gpt-words": f"{CUTS['gpt']}|(bytes|head) vocabulary",
    "llama-words": f"{LLAMA}|(embed_tokens|lm_head) vocabulary",
    "bert-words": f"{CUTS['bert']}|word_embeddings vocabulary",
    "gpt2-words": f"{CUTS['gpt2']}|(wte|lm_head) vocabulary",
}
COUNTS |= {"gpt-words": 10, "llama-words": 16, "bert-words": 15, "gpt2-words": 10}


def same(run: Run, reference: Run) -> None:
    assert_same(run, reference, loss=1e-10, tensor=1e-8)
    assert len(run.losses) == 20 and run.losses[0] != run.losses[-1]


def check_cut(run: Run, kind: str) -> None:
    (event,) = run.of("cut")
    names = [" ".join(one) for one in event["layers"]]
    assert len(names) == COUNTS[kind] and all(re.search(f"({CUTS[kind]})$", name) for name in names), names
    assert event["loss"] < 1e-12 and event["gradient"] < 1e-9


SETTINGS: dict[str, dict[str, Any]] = {
    "gpt": {"stop_steps": 20, "clip": 0.5, "epochs": 3},
    "gpt-words": {"stop_steps": 20, "clip": 0.5, "epochs": 3, "words": 257, "cut": "vocabulary"},
    "mlp": {"kind": "mlp", "cut": "found", "stop_steps": 20, "clip": 0.5},
    "lenet": {"kind": "lenet", "stop_steps": 20},
    "norm": {"kind": "norm", "cut": "found", "stop_steps": 20, "clip": 0.5},
    "llama-words": {"kind": "llama", "words": 4097},
    "bert-words": {"kind": "bert", "words": 4099},
    "gpt2-words": {"kind": "gpt2", "words": 4097},
}
"""Of those that have a file of their own, and of those with a vocabulary that is cut too, in slices of unequal size."""
FILES = {"gpt": "gpt", "gpt-words": "gpt", "mlp": "sliced", "lenet": "staged", "norm": "sliced"}


def start(kind: str, out: Path, **more: Any) -> Run:
    return train(FILES.get(kind, "cut_models"), out, **{**SETTINGS.get(kind, {"kind": kind}), **more})


def alone_of(reference: Callable[..., Run], kind: str) -> Run:
    return reference(FILES.get(kind, "cut_models"), **SETTINGS.get(kind, {"kind": kind}))


MORE = [("bert-words", 4), ("gpt2-words", 2), ("vit", 2), ("qwen3", 4)]


def slow(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


@pytest.mark.parametrize(
    "kind",
    [
        *("mlp", "norm", "lenet", "gpt-words", "bert-words", "encoder"),
        *slow("gpt", "llama", "llama-words", "llama-uneven", "bert", "qwen3", "gpt2", "gpt2-words", "vit", "reader"),
    ],
)
def test_two_workers_equal_one_process(reference: Callable[..., Run], tmp_path: Path, kind: str) -> None:
    whole = alone_of(reference, kind)
    run = start(kind, tmp_path / "two", workers=2, plan="tensor=2")
    same(run, whole)
    check_cut(run, kind)
    messages = [[event["message"] for event in one.of("warning")] for one in (run, whole)]
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("kind", "workers"), [("llama-words", 2), *[pytest.param(*one, marks=pytest.mark.slow) for one in MORE]]
)
def test_some_of_the_tokens_on_each_worker(warm: int, tmp_path: Path, kind: str, workers: int) -> None:
    """There are 9 of them: 5 on one worker, 4 on the other."""
    whole = start(kind, tmp_path / "whole", workers=workers // 2)
    run = start(kind, tmp_path / "run", workers=workers, plan="tensor=2,sequence=true")
    same(run, whole)
    check_cut(run, kind)


PRODUCTS = [
    ("llama", "tensor=2,sequence=true,shard=params"),
    ("bert", "tensor=2,sequence=true,pipeline=2"),
    pytest.param("gpt2", "tensor=2,sequence=true,pipeline=2,schedule=zero-bubble", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "plan"), PRODUCTS)
def test_some_of_the_tokens_where_stages_or_state_are_cut_too(
    reference: Callable[..., Run], tmp_path: Path, kind: str, plan: str
) -> None:
    run = train("cut_models", tmp_path / "run", workers=4, plan=plan, kind=kind, steps=6)
    assert_same(run, reference("cut_models", kind=kind, steps=6), loss=1e-10, tensor=1e-8)


@pytest.mark.parametrize("kind", ["mlp", *slow("gpt-words", "gpt", "llama-words", "bert-words", "encoder", "qwen3")])
def test_two_replicas_of_two_workers_equal_one_process(warm: int, tmp_path: Path, kind: str) -> None:
    # Norms of Qwen3 convert to float32, which makes 6e-10 in the loss of the last bit of fp64, where parts of a batch
    # have another shape (`benchmarks/rounding.py`): two whole replicas have the same shares.
    whole = start(kind, tmp_path / "whole", workers=2 if kind == "qwen3" else 1)
    same(start(kind, tmp_path / "four", workers=4, plan="tensor=2"), whole)


def test_fused_layers_and_uneven_slices_are_saved_whole_and_resumed_under_any_plan(
    reference: Callable[..., Run], tmp_path: Path
) -> None:
    whole = alone_of(reference, "gpt-words")
    for turn, (stop, plan, workers) in enumerate([(6, "tensor=2", 2), (11, "auto", 3), (99, "tensor=2", 4)]):
        stops = {"stop_steps": stop} if stop < 20 else {}
        run = start("gpt-words", tmp_path / "run", workers=workers, plan=plan, resume=turn > 0, **stops)
        if turn == 0:
            (folder,) = (run.out / "checkpoints").iterdir()
            tensors = read_index(folder)["tensors"]
            pieces = tensors["model.blocks.0.query_key_value.weight"]["slices"]
            assert [one["offset"][0] for one in pieces] == [0, 32, 64, 16, 48, 80]
            for name in ("model.bytes.weight", "optim.main.bytes.weight.exp_avg"):
                places = [(one["offset"][0], one["shape"][0]) for one in tensors[name]["slices"]]
                assert places == [(0, 129), (129, 128)], name
    losses = {event["step"]: event["loss"] for event in run.of("step")}
    assert list(losses.values()) == pytest.approx(whole.losses, rel=1e-10)
    assert distance(run, whole) < 1e-8
    assert run.result["order_sha256"] == whole.result["order_sha256"]
