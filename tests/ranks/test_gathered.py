"""Stages whose state is sharded: the curve and the model of one process, checkpoints for any plan, and losses."""

from __future__ import annotations

import itertools
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.state.layout import read_index
from harness import Run, assert_same, distance, train
from strike import striking

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("staged", {"stop_steps": 20}),
    "idle": ("mlp", {"idle": "all", "stop_steps": 20, "batch": 33}),  # a layer without gradients: no weight decay
    "group": ("staged", {"kind": "group", "stop_steps": 20}),
    "gpt": ("gpt", {"stop_steps": 20, "clip": 0.5, "epochs": 3}),  # its head has the weight of its embedding
    "llama": ("cut_models", {"kind": "llama"}),
    "bert": ("cut_models", {"kind": "bert"}),
    "blocks": ("sliced", {"kind": "blocks", "stop_steps": 20, "clip": 0.5}),
    "scaled": ("sliced", {"kind": "scaled", "cut": "found", "stop_steps": 20, "clip": 0.5}),
}
WORDS = ("optimizer", "gradients", "params")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
FAST = [
    ("idle", "pipeline=2,shard=optimizer", 4),
    ("gpt", "pipeline=2,shard=gradients", 4),
    ("llama", "pipeline=2,shard=params,schedule=interleaved", 4),
    ("mlp", "pipeline=2,shard=params,schedule=zero-bubble,shards=2", 8),
    ("blocks", "tensor=2,pipeline=2,shard=optimizer", 8),
]
SLOW = [
    (model, f"pipeline=2,shard={word},schedule={schedule}", 4)
    for model, word, schedule in itertools.product(("mlp", "group", "gpt", "llama", "bert"), WORDS, SCHEDULES)
    if (model, schedule) != ("mlp", "interleaved")  # three layers are too few for four stages
]
SLOW += [
    (model, f"tensor=2,pipeline=2,shard={word},schedule={schedule}", 8)
    for (model, schedule), word in itertools.product(
        [("gpt", "interleaved"), ("llama", "1f1b"), ("bert", "zero-bubble")], WORDS
    )
]
SLOW += [("gpt", "tensor=2,pipeline=2,shard=optimizer", 8)]
SLOW += [(model, f"pipeline=2,shard={word},shards=2", 8) for model in ("gpt", "llama") for word in WORDS]
SLOW += [("scaled", f"pipeline=2,shard={word}", 4) for word in WORDS]  # with a parameter of one number


UNEQUAL = [
    (f"pipeline=2,shard={word}{more}", 6, {"samples": 41, "size": 20, **weights})
    for word in WORDS
    for more in ("", ",schedule=gpipe", ",schedule=zero-bubble,micro_batches=5")
    for weights in ({}, {"light": True, "keep_best": True})
]


def start(model: str, out: Path, **more: Any) -> Run:
    job, settings = MODELS[model]
    return train(job, out, **{**settings, **more})


@pytest.mark.parametrize(
    ("model", "plan", "workers"), [*FAST, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)]
)
def test_equals_one_process(reference: Callable[..., Run], tmp_path: Path, model: str, plan: str, workers: int) -> None:
    run = start(model, tmp_path / "run", workers=workers, plan=plan)
    alone = reference(MODELS[model][0], **MODELS[model][1])
    assert len(alone.losses) == 20
    assert_same(run, alone, loss=1e-10, tensor=1e-8)
    for name in ("cut", "shard"):
        (event,) = run.of(name)
        assert event["loss"] < 1e-12 and event["gradient"] < 1e-9
    messages = [[event["message"] for event in one.of("warning")] for one in (run, alone)]
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("plan", "workers", "settings"),
    [
        # a last step of 3, over shares of 2 and 1: tables of two micro-batches, of which one worker has one
        ("pipeline=2,shard=gradients,micro_batches=4", 4, {"samples": 43, "size": 5}),
        # of 1: two of three shares are empty, and some weigh nothing
        ("pipeline=2,shard=params,micro_batches=3", 6, {"samples": 41, "size": 20, "light": True}),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in UNEQUAL),
    ],
    ids=str,
)
def test_any_share_and_any_weight(
    reference: Callable[..., Run], tmp_path: Path, plan: str, workers: int, settings: dict[str, Any]
) -> None:
    run = train("staged", tmp_path / "run", workers=workers, plan=plan, **settings)
    assert_same(run, reference("staged", **settings), loss=1e-10, tensor=1e-8)


def test_every_worker_holds_its_part_of_its_stage(warm: int, tmp_path: Path) -> None:
    run = start("blocks", tmp_path / "run", workers=4, plan="pipeline=2,shard=optimizer")
    whole = sum(tensor.nbytes for tensor in run.tensors.values())
    held = {event["worker"]: event for event in run.of("held")}
    assert sorted(held) == [0, 1, 2, 3]
    for name, times in (("parameters", 1), ("gradients", 1), ("optimizer", 2)):
        assert sum(event[name] for event in held.values()) == pytest.approx(times * whole, rel=0.05)
        for first, second in ((0, 1), (2, 3)):  # each two have one stage; the two stages are not equal
            assert held[first][name] == pytest.approx(held[second][name], rel=0.1)


TURNS = [("pipeline=2,shard=params", 4), ("auto", 3), ("pipeline=2,shard=optimizer", 4)]
MORE_TURNS = [
    ("tensor=2,pipeline=2,shard=gradients", 8),
    ("shard=params,tensor=2", 4),
    ("pipeline=2,shard=gradients,shards=2", 8),
    ("pipeline=2", 2),
    ("pipeline=2,shard=optimizer,schedule=interleaved", 4),
    ("pipeline=2,shard=params,schedule=interleaved", 4),
]


@pytest.mark.parametrize("turns", [TURNS, pytest.param(MORE_TURNS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_resumes_under_any_plan(reference: Callable[..., Run], tmp_path: Path, turns: list[tuple[str, int]]) -> None:
    whole = reference(MODELS["gpt"][0], **MODELS["gpt"][1])
    for turn, (plan, workers) in enumerate(turns):  # each of them stops in the middle of an epoch
        stops = {"stop_steps": 4 * (turn + 1)} if turn + 1 < len(turns) else {}
        run = start("gpt", tmp_path / "run", workers=workers, plan=plan, resume=turn > 0, **stops)
        if turn == 0:
            (folder,) = (run.out / "checkpoints").iterdir()
            index = read_index(folder)
            assert len(index["files"]) == workers, "each worker writes its part"
            for name, entry in index["tensors"].items():
                pieces = sum(math.prod(piece["shape"]) for piece in entry["slices"])
                assert pieces == math.prod(entry["shape"]), f"{name}: each number once, those of tied weights too"
    losses = {event["step"]: event["loss"] for event in run.of("step")}
    assert list(losses) == list(range(1, 21))
    assert list(losses.values()) == pytest.approx(whole.losses, rel=1e-10)
    assert distance(run, whole) < 1e-8
    assert run.result["order_sha256"] == whole.result["order_sha256"]


@pytest.mark.parametrize(
    ("plan", "victims", "how"),
    [
        ("pipeline=2,shard=params,shards=2", {2: 6}, signal.SIGKILL),
        pytest.param("pipeline=2,shard=optimizer,shards=2", {5: 9}, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("pipeline=2,shard=gradients,shards=2", {0: 7}, signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_the_others_go_on_where_a_whole_replica_is_left(
    reference: Callable[..., Run], tmp_path: Path, plan: str, victims: dict[int, int], how: signal.Signals
) -> None:
    settings: dict[str, Any] = {"save_steps": 3, "epochs": 4}
    run = train("staged", tmp_path / "run", workers=8, plan=plan, listen=striking(victims, how), **settings)
    assert len(run.of("failure")) == 4, "those who held the rest of the replica leave too"
    assert_same(run, reference("staged", **settings), loss=1e-10, tensor=1e-8)


def test_all_workers_get_all_predictions(warm: int, tmp_path: Path) -> None:
    for workers, plan in ((1, "auto"), (4, "pipeline=2,shard=params")):
        train("staged", tmp_path / plan, workers=workers, plan=plan, predicts=tmp_path / str(workers))
    expected = np.load(tmp_path / "1-0.npy")
    for rank in range(4):
        np.testing.assert_allclose(np.load(tmp_path / f"4-{rank}.npy"), expected, rtol=0, atol=1e-8)
