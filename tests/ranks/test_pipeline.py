"""Layers in stages over workers: the curve and the model of one process, checkpoints for any plan, and losses."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import CordeeError, ModelError, PlanError, UsageError
from cordee.state.layout import read_index
from cordee.watch.summarise import summarise
from harness import JOBS, Run, assert_same, distance, run_script, train
from strike import striking

FILES = {"gpt": "gpt", "llama": "cut_models", "bert": "cut_models"}
SETTINGS: dict[str, dict[str, Any]] = {"gpt": {"stop_steps": 20, "clip": 0.5, "epochs": 3}}
MODELS = ("mlp", "cnn", "gpt", "llama", "bert")
PLANS = {
    "pipeline=2": 2,
    "pipeline=2,schedule=gpipe": 2,
    "pipeline=2,schedule=interleaved": 2,
    "pipeline=2,schedule=zero-bubble,micro_batches=5": 2,
    "tensor=2,pipeline=2": 4,
    "pipeline=2,schedule=1f1b,micro_batches=3": 4,
    "tensor=2,pipeline=2,schedule=zero-bubble": 8,
    "pipeline=2,schedule=interleaved,micro_batches=2": 4,
    "pipeline=2,schedule=gpipe,micro_batches=2": 4,
    "pipeline=2,schedule=zero-bubble": 4,
}
"""With the workers that each runs on."""


def start(kind: str, out: Path, **more: Any) -> Run:
    return train(FILES.get(kind, "staged"), out, **{**settings_of(kind), **more})


def settings_of(kind: str) -> dict[str, Any]:
    return SETTINGS.get(kind, {"kind": kind, **({} if kind in FILES else {"stop_steps": 20})})


def same(run: Run, reference: Run) -> None:
    assert_same(run, reference, loss=1e-10, tensor=1e-8)
    assert len(run.losses) == 20 and run.losses[0] != run.losses[-1]


def products() -> list[Any]:
    """Every plan, with a model that differs from plan to plan; all of the rest is slow."""
    cases = []
    for turn, plan in enumerate(PLANS):
        for place, name in enumerate(MODELS):
            kind = {"cnn": "lenet" if "tensor" in plan else "group"}.get(name, name)  # of the other nothing can be cut
            fits = plan.count("interleaved") == 0 or kind != "mlp"  # three layers are too few for four stages
            rare = place != (2 + turn) % len(MODELS)
            if fits:
                cases.append(pytest.param(plan, kind, marks=[pytest.mark.slow] if rare else []))
    assert {case.values[0] for case in cases if not case.marks} == set(PLANS), "each plan is trained in every run"
    return cases


@pytest.mark.parametrize(("plan", "kind"), products())
def test_equals_one_process(reference: Callable[..., Run], tmp_path: Path, plan: str, kind: str) -> None:
    run = start(kind, tmp_path / "stages", workers=PLANS[plan], plan=plan)
    alone = reference(FILES.get(kind, "staged"), **settings_of(kind))
    same(run, alone)
    (event,) = run.of("cut")
    assert event["loss"] < 1e-12 and event["gradient"] < 1e-9
    assert {stage for _, stage, _ in event["units"]} == set(range(4 if "interleaved" in plan else 2))
    messages = [[event["message"] for event in one.of("warning")] for one in (run, alone)]
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("plan", "workers", "settings"),
    [
        ("pipeline=2,micro_batches=4", 4, {"samples": 43, "size": 5}),  # a last step of 3: shares of 2 and 1
        ("pipeline=2,micro_batches=3", 6, {"samples": 41, "size": 20, "light": True}),  # of 1: two shares are empty
        ("pipeline=3,schedule=zero-bubble", 3, {"keep_best": True}),
        ("pipeline=2,layout=channels_last", 4, {"kind": "group"}),
        ("pipeline=2,micro_batches=1", 2, {"kind": "batch"}),  # one micro-batch: statistics of the global batch
    ],
    ids=str,
)
def test_any_share_and_any_weight(
    reference: Callable[..., Run], tmp_path: Path, plan: str, workers: int, settings: dict[str, Any]
) -> None:
    run = train("staged", tmp_path / "stages", workers=workers, plan=plan, **settings)
    assert_same(run, reference("staged", **settings), loss=1e-10, tensor=1e-8)


RESUMED = [("pipeline=2,schedule=interleaved", 4), ("auto", 3), ("pipeline=2,tensor=2", 4)]
ALSO = [
    ("pipeline=2,tensor=2", 8),
    ("auto", 1),
    ("pipeline=2,schedule=zero-bubble", 2),
    ("tensor=2", 2),
    ("pipeline=3", 3),
]


@pytest.mark.parametrize("turns", [RESUMED, pytest.param(ALSO, marks=pytest.mark.slow)], ids=["some", "all"])
def test_resumes_under_any_plan(reference: Callable[..., Run], tmp_path: Path, turns: list[tuple[str, int]]) -> None:
    whole = reference("gpt", **settings_of("gpt"))
    for turn, (plan, workers) in enumerate(turns):  # each of them stops in the middle of an epoch
        stops = {"stop_steps": 4 * (turn + 1)} if turn + 1 < len(turns) else {}
        run = start("gpt", tmp_path / "run", workers=workers, plan=plan, resume=turn > 0, traced=True, **stops)
        if turn == 0:
            (folder,) = (run.out / "checkpoints").iterdir()
            index = read_index(folder)
            assert len(index["files"]) == (4 if "tensor" in plan else 2), "each stage writes its own layers"
            assert index["meta"]["aliases"] == {"head.weight": "bytes.weight"}
            for entry in index["tensors"].values():
                held = sum(math.prod(piece["shape"]) for piece in entry["slices"])
                assert held == math.prod(entry["shape"]), "and nothing twice"
    assert [event["message"] for event in run.of("warning")] == []
    losses = {event["step"]: event["loss"] for event in run.of("step")}
    assert list(losses) == list(range(1, 21))
    assert list(losses.values()) == pytest.approx(whole.losses, rel=1e-10)
    assert distance(run, whole) < 1e-8
    assert run.result["order_sha256"] == whole.result["order_sha256"]


@pytest.mark.parametrize(
    ("victims", "how"),
    [({1: 6}, signal.SIGKILL), ({2: 9}, signal.SIGKILL), pytest.param({3: 7}, signal.SIGSTOP, marks=pytest.mark.slow)],
    ids=str,
)
def test_the_others_go_on_where_a_whole_replica_is_left(
    reference: Callable[..., Run], tmp_path: Path, victims: dict[int, int], how: signal.Signals
) -> None:
    settings: dict[str, Any] = {"save_steps": 3, "epochs": 4}
    run = train("staged", tmp_path / "run", workers=4, plan="pipeline=2", listen=striking(victims, how), **settings)
    assert len(run.of("failure")) == 2, "the other stage of the replica leaves too"
    assert_same(run, reference("staged", **settings), loss=1e-10, tensor=1e-8)


@pytest.mark.parametrize("victim", [5, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stage_of_slices_is_lost_where_another_replica_is_left(
    reference: Callable[..., Run], tmp_path: Path, victim: int
) -> None:
    settings: dict[str, Any] = {"save_steps": 3, "epochs": 4}
    strike = striking({victim: 6}, signal.SIGKILL)
    run = train("staged", tmp_path / "run", workers=8, plan="tensor=2,pipeline=2", listen=strike, **settings)
    first = 4 * (victim // 4)
    assert sorted(event["worker"] for event in run.of("failure")) == [first, first + 1, first + 2, first + 3]
    assert_same(run, reference("staged", **settings), loss=1e-10, tensor=1e-8)


def test_a_forecast_stands_beside_what_was_measured(warm: int, tmp_path: Path) -> None:
    run = train("staged", tmp_path / "run", workers=4, plan="pipeline=2", kind="drops", epochs=4)
    early, late = run.of("pipeline")
    assert early["step"] < late["step"] and early["schedule"] == "1f1b"
    steps = [event for event in run.of("pipelinestep") if event["step"] > late["step"]]
    assert {(event["replica"], event["rank"]) for event in steps} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    lengths = [len(line.split()) for line in late["table"].splitlines()]
    assert all(len(event["spans"]) == lengths[event["rank"]] for event in steps)
    page = summarise(run.out).pipeline
    assert page is not None and len(page.measured) == 2 and page.forecast_ms > 0


def test_batchnorm_of_micro_batches_is_said_to_be_statistical(warm: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has BatchNorm, and pipeline=2 .*Set batchnorm=replica"):
        train("staged", tmp_path / "exact", workers=2, plan="pipeline=2", kind="batch")
    run = train("staged", tmp_path / "run", workers=4, plan="pipeline=2,batchnorm=replica", kind="batch")
    assert run.losses[-1] < run.losses[0] and run.result["samples_lost"] == 0
    assert json.loads((run.out / "run.json").read_text())["faithfulness"] == "statistical"


def test_all_workers_get_all_predictions(warm: int, tmp_path: Path) -> None:
    for workers, plan in ((1, "auto"), (4, "pipeline=2")):
        train("staged", tmp_path / plan, workers=workers, plan=plan, predicts=tmp_path / str(workers))
    expected = np.load(tmp_path / "1-0.npy")
    assert expected.shape == (7, 10)
    for rank in range(4):
        np.testing.assert_allclose(np.load(tmp_path / f"4-{rank}.npy"), expected, rtol=0, atol=1e-8)
    with pytest.raises(CordeeError, match=r"has no weights on this worker.*cordee\.predict"):
        train("staged", tmp_path / "itself", workers=2, plan="pipeline=2", predicts="itself")


def test_a_user_may_name_stages(warm: int, tmp_path: Path) -> None:
    file = tmp_path / "named.py"
    names = '["0", "5"]'
    file.write_text((JOBS / "staged.py").read_text().replace("epochs=2,", f"epochs=2, stages={names},"))
    run = train(file, tmp_path / "run", workers=2, plan="pipeline=2", stop_steps=2)
    assert [stage for _, stage, _ in run.of("cut")[0]["units"]] == [0, 0, 1]
    with pytest.raises(PlanError, match="stages names 2 layers, but pipeline=3"):
        train(file, tmp_path / "three", workers=3, plan="pipeline=3", stop_steps=2)


def test_what_cannot_run_is_refused_before_the_first_step(warm: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"4 stages: expected 1 to 3\. The model has 3 units: 0, 2, 5"):
        train("staged", tmp_path / "run", workers=4, plan="pipeline=4")
    with pytest.raises(UsageError, match="pipeline=2 needs the loop of a job"):
        run_script(JOBS / "own_loop.py", tmp_path / "own", str(tmp_path), workers=2, plan="pipeline=2")
