"""`exact=true`: the same bits on any number of workers, whoever computes what, through failures and after a resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import CordeeError, JobError, ModelError, UsageError
from harness import JOBS, Run, assert_audited, run_script, train


def bits(run: Run) -> tuple[object, ...]:
    """All that has to be the same: of each step loss and norm, and what it ended with."""
    assert_audited(run)
    steps = {event["step"]: (event["loss"], event["grad_norm"]) for event in run.of("step")}
    named = ("params_sha256", "order_sha256", "samples", "loss", "validation")
    return (*sorted(steps.items()), *(json.dumps(run.result[name]) for name in named))


@pytest.fixture(scope="module")
def alone(warm: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield train("pieces", tmp_path_factory.mktemp("alone") / "run", plan="exact=true")


@pytest.mark.parametrize(
    ("workers", "more"),
    [(2, ""), (3, ",proportions=5:1:2"), (5, ",share=sampled"), (2, ",proportions=1:0,backend=gloo")],
)
def test_any_number_of_workers(workers: int, more: str, alone: Run, tmp_path: Path) -> None:
    run = train("pieces", tmp_path / "run", workers=workers, plan="exact=true" + more)
    assert len(alone.of("step")) == 12
    assert bits(run) == bits(alone)
    assert json.loads((run.out / "run.json").read_text())["faithfulness"] == "exact"


def test_more_workers_than_pieces(tmp_path: Path) -> None:
    runs = [
        train("pieces", tmp_path / str(one), workers=one, plan="exact=true,pieces=3", stop_steps=3) for one in (1, 4)
    ]
    assert bits(runs[0]) == bits(runs[1])
    assert any("1 workers have nothing to do" in event["message"] for event in runs[1].of("warning"))


@pytest.mark.parametrize("dead", ["1:4:loss", "0:7:update", "2:6:loss"])  # the last one in an evaluation
def test_a_worker_that_dies(dead: str, alone: Run, tmp_path: Path) -> None:
    run = train("pieces", tmp_path / "run", workers=3, plan="exact=true,proportions=2:3:3", dead=dead)
    assert [event["worker"] for event in run.of("failure")] == [int(dead[0])]
    assert bits(run) == bits(alone)


def test_a_worker_that_comes_in(alone: Run, tmp_path: Path) -> None:
    plan = "exact=true,replace=true"
    run = train("pieces", tmp_path / "run", workers=2, plan=plan, dead="1:2:loss", awaits=8)
    assert run.of("joined") and bits(run) == bits(alone)


def test_resumed_on_another_number(alone: Run, tmp_path: Path) -> None:
    train("pieces", tmp_path / "run", workers=3, plan="exact=true", stop_steps=5)
    run = train("pieces", tmp_path / "run", workers=2, plan="exact=true", resume=True)
    assert bits(run)[:12] == bits(alone)[:12]
    assert run.result["params_sha256"] == alone.result["params_sha256"]


def test_other_conditions_are_told(tmp_path: Path) -> None:
    train("pieces", tmp_path / "run", plan="exact=true", stop_steps=1)
    run = train("pieces", tmp_path / "run", plan="exact=true,pieces=2", resume=True, stop_steps=2)
    (told,) = (one["message"] for one in run.of("warning") if "exact=true" in one["message"])
    assert "the run had pieces 8, here it is pieces 2" in told


@pytest.mark.thinned(2)
@pytest.mark.parametrize("settings", [{"weighed": True}, {"keep_best": True}])
def test_weights_and_what_an_evaluation_decides(settings: dict[str, Any], tmp_path: Path) -> None:
    runs = [train("pieces", tmp_path / str(one), workers=one, plan="exact=true", **settings) for one in (1, 3)]
    assert bits(runs[0]) == bits(runs[1])


def test_without_it_bits_differ(alone: Run, tmp_path: Path) -> None:
    """Or the tests above could not fail: dropout aside, by rounding alone."""
    runs = [train("pieces", tmp_path / str(one), workers=one, drop=0.0) for one in (1, 2)]
    assert runs[0].result["params_sha256"] != runs[1].result["params_sha256"]
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-3) and runs[0].losses != runs[1].losses


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    found = []
    for workers in (1, 3):
        run = run_script(JOBS / "pieces_loop.py", tmp_path / str(workers), workers=workers, plan="exact=true,pieces=4")
        found.append([(event["loss"], event["grad_norm"]) for event in run.of("step")])
    assert len(found[0]) == 10 and found[0] == found[1]


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("threads", JobError, r"what exact=true needs alike .*threads 1 and threads 2"),
        ("twice", UsageError, r"one update in a step"),
        ("counting", ModelError, r"buffer seen of Net changes in training"),
    ],
)
def test_loops_that_cannot_be_exact(fault: str, error: type[CordeeError], said: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=said):
        run_script(JOBS / "pieces_loop.py", tmp_path / "run", fault, workers=2, plan="exact=true")


def test_batchnorm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"BatchNorm, and exact=true computes a step in pieces"):
        train("pieces", tmp_path / "run", workers=2, plan="exact=true", norm="batch")
