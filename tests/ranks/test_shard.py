"""State that lies over workers: the curve and the model of one process, checkpoints for any plan, and losses."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import ModelError, WorkersLost
from cordee.state.layout import read_index
from harness import JOBS, Run, assert_same, run_script, train
from strike import striking

WORDS = ("optimizer", "gradients", "params")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("sliced", {"kind": "mlp", "stop_steps": 20, "clip": 0.5}),
    "cnn": ("cnn", {"stop_steps": 20, "epochs": 2, "clip": 0.5}),
    "gpt": ("gpt", {"stop_steps": 20, "clip": 0.5, "epochs": 3}),
    "llama": ("cut_models", {"kind": "llama"}),
    "bert": ("cut_models", {"kind": "bert"}),
    "blocks": ("sliced", {"kind": "blocks", "stop_steps": 20, "clip": 0.5}),
    "scaled": ("sliced", {"kind": "scaled", "cut": "found", "stop_steps": 20, "clip": 0.5}),
    "marked": ("sliced", {"kind": "scaled", "cut": "found", "stop_steps": 6, "optimizer": "grouped"}),
}
FAST = [
    ("mlp", "shard=params,proportions=5:0:3", 3),  # an empty share, and a norm over the batch
    ("cnn", "shard=gradients", 2),
    ("gpt", "shard=optimizer,accumulate=3", 2),
    ("llama", "shard=params", 2),
    ("bert", "shard=gradients,shards=2", 4),
    ("mlp", "shard=optimizer,shards=2", 4),
    ("gpt", "shard=params,shards=2", 4),
    ("scaled", "shard=params,tensor=2", 4),  # with a parameter of one number, and slices
    ("marked", "shard=params,tensor=2", 4),  # whose optimizer makes groups by a mark of its parameters
]
SLOW = [
    (model, f"shard={word}{more}", workers)
    for model, word, (more, workers) in itertools.product(
        ("mlp", "cnn", "gpt", "llama", "bert"), WORDS, [("", 2), (",shards=2", 4)]
    )
]
SLOW += [(model, f"shard={word},tensor=2", 4) for model in ("mlp", "gpt", "llama", "bert") for word in WORDS]
SLOW += [("gpt", "shard=params,shards=2,tensor=2", 8), ("blocks", "shard=params,share=sampled,accumulate=15", 3)]


def start(model: str, out: Path, **more: Any) -> Run:
    job, settings = MODELS[model]
    return train(job, out, **{**settings, **more})


@pytest.mark.parametrize(
    ("model", "plan", "workers"), [*FAST, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)]
)
def test_equals_one_process(reference: Callable[..., Run], tmp_path: Path, model: str, plan: str, workers: int) -> None:
    run = start(model, tmp_path / "run", workers=workers, plan=plan)
    alone = reference(MODELS[model][0], **MODELS[model][1])
    assert_same(run, alone, loss=1e-10, tensor=1e-8)
    (event,) = run.of("shard")
    assert event["units"] and event["loss"] < 1e-12 and event["gradient"] < 1e-9
    assert event["whole"] == (["1.scale"] if model in ("scaled", "marked") else [])


def test_every_worker_holds_its_part_of_the_state(reference: Callable[..., Run], tmp_path: Path) -> None:
    run = start("blocks", tmp_path / "run", workers=4, plan="shard=params")
    alone = reference(MODELS["blocks"][0], **MODELS["blocks"][1])
    ideal = sum(tensor.nbytes for tensor in alone.tensors.values()) / 4
    held = {event["worker"]: event for event in run.of("held")}
    assert sorted(held) == [0, 1, 2, 3]
    for event in held.values():
        for name, times in (("parameters", 1), ("gradients", 1), ("optimizer", 2)):
            assert event[name] == pytest.approx(times * ideal, rel=0.1)
    for event in run.of("memory"):  # two blocks of this model are most of it; gradients of one of them
        assert 4 * ideal < event["gathered"] < 8 * ideal
        parts = sum(event[name] or 0 for name in ("parameters", "gradients", "state", "buckets", "activations"))
        assert event["total"] == parts + event["gathered"]


def test_resumes_under_any_plan_on_any_number_of_workers(reference: Callable[..., Run], tmp_path: Path) -> None:
    whole = reference("sliced", kind="blocks")
    stops = [(4, "shard=params", 3), (8, "auto", 2), (14, "shard=optimizer,tensor=2", 4), (99, "shard=gradients", 2)]
    for turn, (stop, plan, workers) in enumerate(stops):  # 11 steps an epoch: each of them in the middle of one
        out = tmp_path / "run"
        run = train("sliced", out, workers=workers, plan=plan, resume=turn > 0, kind="blocks", stop_steps=stop)
        if turn == 0:
            (folder,) = (out / "checkpoints").iterdir()
            offsets = {
                name: [piece["offset"] for piece in entry["slices"]]
                for name, entry in read_index(folder)["tensors"].items()
            }
            assert (
                offsets["model.1.up.weight"] == offsets["optim.main.1.up.weight.exp_avg"] == [[0, 0], [32, 0], [64, 0]]
            )
    steps = {event["step"]: event["loss"] for event in run.of("step")}
    assert list(steps) == list(range(1, len(whole.losses) + 1))
    assert np.allclose(list(steps.values()), whole.losses, rtol=0, atol=1e-10)
    for name, tensor in whole.tensors.items():
        assert np.allclose(run.tensors[name], tensor, rtol=0, atol=1e-8), name
    assert run.result["order_sha256"] == whole.result["order_sha256"]


def test_a_lost_shard_ends_the_run_and_says_how_to_continue(reference: Callable[..., Run], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kind": "blocks", "save_steps": 2, "epochs": 200}
    with pytest.raises(WorkersLost, match="part of the model") as caught:
        strike = striking({1: 6}, signal.SIGKILL)
        train("sliced", tmp_path / "run", workers=2, plan="shard=params", listen=strike, **settings)
    assert "--resume" in str(caught.value)
    settings |= {"stop_steps": 20}
    run = train("sliced", tmp_path / "run", resume=True, **settings)
    alone = reference("sliced", **settings)
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert np.allclose(run.losses[-1], alone.losses[-1], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("victims", "plan", "how"),
    [
        ({1: 6}, "shard=params,shards=2", signal.SIGKILL),
        pytest.param({0: 5, 3: 40}, "shard=optimizer,accumulate=2,shards=2", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param({2: 9}, "shard=gradients,shards=2", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_others_go_on_where_a_whole_replica_is_left(
    reference: Callable[..., Run], tmp_path: Path, victims: dict[int, int], plan: str, how: signal.Signals
) -> None:
    settings: dict[str, Any] = {"kind": "blocks", "save_steps": 3, "epochs": 4}
    workers = 2 * len(victims) + 2
    run = train("sliced", tmp_path / "run", workers=workers, plan=plan, listen=striking(victims, how), **settings)
    assert len(run.of("failure")) == workers - 2, "those who held the rest of a replica leave too"
    assert_same(run, reference("sliced", **settings), loss=1e-10, tensor=1e-8)


@pytest.mark.parametrize(
    ("plan", "workers"),
    [
        ("shard=gradients,shards=2", 4),
        ("shard=params,tensor=2,shards=2", 8),
        pytest.param("shard=params,tensor=2", 4, marks=pytest.mark.slow),
        pytest.param("shard=optimizer", 3, marks=pytest.mark.slow),
    ],
)
def test_an_own_loop_is_sharded_too(warm: int, tmp_path: Path, plan: str, workers: int) -> None:
    for count, how in ((1, "auto"), (workers, plan)):
        run_script(JOBS / "sharded_loop.py", tmp_path / str(count), str(tmp_path), workers=count, plan=how)
    alone = json.loads((tmp_path / "1-0.json").read_text())
    for rank in range(workers):
        own = json.loads((tmp_path / f"{workers}-{rank}.json").read_text())
        for name, numbers in alone.items():
            assert np.allclose(own[name], numbers, rtol=0, atol=1e-8), name


@pytest.mark.parametrize(
    ("job", "settings", "told"),
    [
        ("unsharded", {"kind": "sparse"}, "'0' has sparse gradients"),
        ("unsharded", {"kind": "weights"}, "cannot be sharded: whole, the loss"),
        ("mlp", {"idle": "some"}, "workers computed different layers in one step"),
    ],
)
def test_a_model_that_cannot_be_sharded_is_refused(
    warm: int, tmp_path: Path, job: str, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ModelError, match=told):
        train(job, tmp_path / "run", workers=2, plan="shard=params", **settings)
