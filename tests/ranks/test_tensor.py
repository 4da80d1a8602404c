"""Linear layers cut over workers: the curve and the model of one process, checkpoints for any plan, and losses."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import ModelError, PlanError, WorkersLost
from cordee.core.plan import Plan
from cordee.state.layout import read_index
from harness import JOBS, Run, run_script, train
from strike import striking


def same(run: Run, reference: Run) -> None:
    assert len(run.losses) == len(reference.losses) > 0
    assert np.allclose(run.losses, reference.losses, rtol=0, atol=1e-10)
    assert run.tensors.keys() == reference.tensors.keys()
    for name, tensor in reference.tensors.items():
        assert np.allclose(run.tensors[name], tensor, rtol=0, atol=1e-8), name
    for name in ("order_sha256", "steps", "samples", "samples_lost", "samples_repeated", "best"):
        assert run.result[name] == pytest.approx(reference.result[name]), name
    for name, value in reference.result["validation"].items():
        assert run.result["validation"][name] == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize(
    ("plan", "workers", "settings"),
    [
        ("tensor=2", 2, {"optimizer": "hooked", "clip": 0.5}),
        ("tensor=2", 4, {"kind": "blocks", "clip": 0.5, "optimizer": "momentum", "epochs": 1}),
        ("tensor=2,accumulate=3", 4, {"kind": "blocks", "keep_best": True, "clip": 0.5}),
        pytest.param("tensor=4", 4, {"kind": "drops"}, marks=pytest.mark.slow),
        pytest.param("tensor=2,share=sampled,bucket_mb=0.01", 6, {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_equals_one_process(
    reference: Callable[..., Run], tmp_path: Path, plan: str, workers: int, settings: dict[str, Any]
) -> None:
    run = train("sliced", tmp_path / "sliced", workers=workers, plan=plan, traced=True, **settings)
    same(run, reference("sliced", **settings))
    assert [event["message"] for event in run.of("warning")] == []


def test_resumes_whole_on_three_workers_and_in_slices_again(reference: Callable[..., Run], tmp_path: Path) -> None:
    whole = reference("sliced", kind="blocks")
    out = tmp_path / "run"
    stops = [(5, "tensor=2", 4), (9, "auto", 3), (14, "tensor=2", 2), (99, "tensor=4", 4)]
    for turn, (stop, plan, workers) in enumerate(stops):  # 11 steps an epoch: each of them in the middle of one
        run = train("sliced", out, workers=workers, plan=plan, resume=turn > 0, kind="blocks", stop_steps=stop)
    steps = {event["step"]: event["loss"] for event in run.of("step")}
    assert list(steps) == list(range(1, len(whole.losses) + 1))
    assert np.allclose(list(steps.values()), whole.losses, rtol=0, atol=1e-10)
    for name, tensor in whole.tensors.items():
        assert np.allclose(run.tensors[name], tensor, rtol=0, atol=1e-8), name
    assert run.result["order_sha256"] == whole.result["order_sha256"]


def test_every_owner_writes_its_slices(warm: int, tmp_path: Path) -> None:
    run = train("sliced", tmp_path / "run", workers=4, plan="tensor=2", kind="blocks", stop_steps=3)
    [folder] = (run.out / "checkpoints").iterdir()
    index = read_index(folder)
    slices = {name: [piece["offset"] for piece in entry["slices"]] for name, entry in index["tensors"].items()}
    assert slices["model.1.up.weight"] == slices["optim.main.1.up.weight.exp_avg"] == [[0, 0], [48, 0]]
    assert slices["model.1.down.weight"] == [[0, 0], [0, 48]]
    assert slices["model.1.down.bias"] == [[0]]
    assert len(index["files"]) == 2


@pytest.mark.parametrize(
    ("victims", "how", "left"),
    [
        ({1: 6}, signal.SIGKILL, 2),
        pytest.param({2: 9}, signal.SIGKILL, 2, marks=pytest.mark.slow),
        ({0: 5, 3: 20}, signal.SIGKILL, 2),
        pytest.param({3: 7}, signal.SIGSTOP, 2, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_others_go_on_where_a_whole_replica_is_left(
    reference: Callable[..., Run], tmp_path: Path, victims: dict[int, int], how: signal.Signals, left: int
) -> None:
    settings: dict[str, Any] = {"kind": "blocks", "save_steps": 3, "epochs": 4}
    workers = 2 * len(victims) + 2
    run = train("sliced", tmp_path / "run", workers=workers, plan="tensor=2", listen=striking(victims, how), **settings)
    assert len(run.of("failure")) == workers - left, "those who held the rest of a replica leave too"
    same(run, reference("sliced", **settings))


@pytest.mark.parametrize(("worker", "step"), [(1, 3), (1, 6), (0, 6)])
def test_a_writer_of_a_checkpoint_is_lost(
    reference: Callable[..., Run], tmp_path: Path, worker: int, step: int
) -> None:
    """The other replica goes on, and writes what is left; at the end the same checkpoint, which was half-written."""
    run = train("lost_writer", tmp_path / "run", workers=4, plan="tensor=2", worker=worker, step=step)
    assert sorted(event["worker"] for event in run.of("failure")) == [0, 1]
    assert len(read_index(run.out / "checkpoints" / "step-00000006")["files"]) == 2
    same(run, reference("lost_writer"))


def test_a_writer_of_a_checkpoint_is_lost_where_no_other_replica_is(warm: int, tmp_path: Path) -> None:
    with pytest.raises(WorkersLost, match="part of the model") as caught:
        train("lost_writer", tmp_path / "run", workers=2, plan="tensor=2", worker=1)
    assert "--resume" in str(caught.value)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"0": "colwise", "5": "rowwise"}, "no such layer"),
        ({"0": "columns"}, "expected column, row, vocabulary"),
        ({"3": "colwise"}, "BatchNorm1d"),
        ({"4": "colwise"}, "cannot be cut into 4"),
        ({}, "names no layer"),
        ({"0": "colwise"}, "tensor_plan does not fit the model: whole, the loss"),
        ({"0": "row", "2": "column"}, "tensor_plan does not fit the model: whole, the loss"),
    ],
)
def test_a_cut_that_does_not_fit_is_refused(warm: int, tmp_path: Path, plan: dict[str, str], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        train("sliced", tmp_path / "run", workers=4, plan="tensor=4", cut=json.dumps(plan))


@pytest.mark.parametrize("plan", ["sync=local", "compile=true", "precision=fp16"])
def test_what_does_not_go_together_is_refused(plan: str) -> None:
    with pytest.raises(PlanError, match=f"tensor=2 does not work with {plan}"):
        Plan.parse(f"tensor=2,{plan}").check(4)
    with pytest.raises(PlanError, match="a multiple of 2 workers"):
        Plan.parse("tensor=2").check(3)


def test_a_wrong_gradient_is_refused_and_named(reference: Callable[..., Run], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the gradient of 1\.scale differs by 0\.\d+ of its size"):
        train("sliced", tmp_path / "named", workers=2, plan="tensor=2", kind="scaled")
    with pytest.raises(ModelError) as caught:
        train("sliced", tmp_path / "loss", workers=4, plan="tensor=2,pipeline=2", kind="shared")
    said = str(caught.value)
    assert re.search(r"cut, the loss of two samples is [\d.]+; the gradient of 1\.\w+\.\w+ differs most, by", said)
    assert re.search(r"Leave the layer 1\.\w+, or .* out of tensor_plan\. ", said)
    run = train("sliced", tmp_path / "found", workers=2, plan="tensor=2", kind="scaled", cut="found")
    same(run, reference("sliced", kind="scaled"))
    (event,) = run.of("cut")
    assert event["layers"] == [("2.up", "column"), ("2.down", "row")]
    assert "1.scale, which acts elsewhere too" in dict(event["whole"])["1.up"]


def test_a_model_of_which_nothing_can_be_cut_is_refused(warm: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"of this Sequential none can be cut: .*cannot be shared out over 5 workers"):
        train("sliced", tmp_path / "run", workers=5, plan="tensor=5", kind="mlp", cut="found")


@pytest.mark.parametrize("cut", ["named", "found", "neither"])
def test_an_own_loop_is_cut_too(warm: int, tmp_path: Path, cut: str) -> None:
    script = JOBS / "sliced_loop.py"
    if cut == "neither":
        with pytest.raises(ModelError, match=r"s\.prepare\(model, sample=x\)"):
            run_script(script, tmp_path / "run", str(tmp_path), cut, workers=2, plan="tensor=2")
        return
    for workers, plan in ((1, "auto"), (4, "tensor=2")):
        run_script(script, tmp_path / str(workers), str(tmp_path), cut, workers=workers, plan=plan)
    alone, first = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1-0", "4-0"))
    assert np.allclose(alone["losses"], first["losses"], rtol=0, atol=1e-10)
    for rank in range(1, 4):
        assert json.loads((tmp_path / f"4-{rank}.json").read_text())["losses"] == first["losses"]
