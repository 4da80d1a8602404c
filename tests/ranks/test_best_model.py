"""With early stopping or `keep_best` the model of a run is the best one: its weights, its test, its name."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cordee
from cordee.state.checkpoint import Checkpoints
from cordee.state.naming import fingerprint
from harness import DEADLINE_S, Run, assert_same, distance, job_file, start, train
from records import events_until

Reference = Callable[..., Run]
EPOCH = 10
"""Steps of an epoch, after which the metric `size` is the best in all these runs."""


def assert_best(run: Run, reference: Reference, *, steps: int) -> None:
    """Everything that a run says of its model is said of the best, that of the first epoch."""
    alone = reference("best", stop_steps=EPOCH, traced=True)
    assert run.result["steps"] == steps
    assert distance(run, alone) <= 1e-9
    for part in ("validation", "test"):
        for name, value in alone.result[part].items():
            assert run.result[part][name] == pytest.approx(value, abs=1e-9), (part, name)
    size = run.of("epoch")[0]["validation"]["size"]
    assert run.result["model"] == "best"
    assert run.result["best"] == {"metric": "size", "value": size, "step": EPOCH, "epoch": 0}
    assert run.result["params_sha256"] == fingerprint({name: torch.from_numpy(t) for name, t in run.tensors.items()})
    x = cordee.data.digits().test.gather(np.arange(5))["x"]  # type: ignore[union-attr]
    assert torch.allclose(cordee.load(run.out)(x), cordee.load(alone.out)(x), atol=1e-9)


def last_weights(run: Run) -> dict[str, torch.Tensor]:
    checkpoints = Checkpoints(run.out / "checkpoints")
    return checkpoints.read(checkpoints.list()[-1][0]).weights()


def assert_last(run: Run, alone: Run) -> None:
    """The newest checkpoint is of the last step."""
    for name, tensor in last_weights(run).items():
        np.testing.assert_allclose(tensor.numpy(), alone.tensors[name], rtol=0, atol=1e-9)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("workers", [1, 3])
def test_the_model_is_the_best_and_a_run_goes_on_with_the_last(
    workers: int, reference: Reference, tmp_path: Path
) -> None:
    run = train("best", tmp_path / "run", workers=workers, traced=True)
    assert_best(run, reference, steps=3 * EPOCH)
    assert_last(run, reference("best", keep_best=None))
    longer = train("best", tmp_path / "run", workers=2, epochs=4, resume=True, traced=True)
    assert_best(longer, reference, steps=4 * EPOCH)
    np.testing.assert_allclose(longer.losses, reference("best", keep_best=None, epochs=4).losses, rtol=1e-9)
    assert_last(longer, reference("best", keep_best=None, epochs=4))


def test_early_stopping_keeps_the_best_by_itself(reference: Reference, tmp_path: Path) -> None:
    run = train("best", tmp_path / "run", workers=2, keep_best=None, stop_metric="-size", traced=True)
    assert_best(run, reference, steps=2 * EPOCH)
    assert [step for step, _ in Checkpoints(run.out / "checkpoints").list()] == [EPOCH, 2 * EPOCH]
    assert_last(run, reference("best", keep_best=None, stop_steps=2 * EPOCH))


def test_a_best_that_is_gone_is_said_and_the_last_is_taken(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train("best", out, workers=2, stop_steps=2 * EPOCH, traced=True)
    for path in (out / "checkpoints" / f"step-{EPOCH:08d}").iterdir():
        path.write_bytes(b"")
    run = train("best", out, workers=2, resume=True, traced=True)
    assert run.result["model"] == "last" and run.result["best"]["step"] == EPOCH
    assert any("is the last one, not the best, of step 10" in one["message"] for one in run.of("warning"))
    assert_same(run, reference("best", keep_best=None))


@pytest.mark.parametrize("place", ["share-1", "share-3", pytest.param("cast-3-2", marks=pytest.mark.slow)])
def test_the_worker_that_reads_the_best_dies(place: str, reference: Reference, tmp_path: Path) -> None:
    """At first, when all have the table, and between two tensors."""
    words = tmp_path / "words"
    words.mkdir()
    run = train("best", tmp_path / "run", workers=3, acts=json.dumps({0: {place: ["die"]}}), words=words, traced=True)
    assert [event["worker"] for event in run.of("failure")] == [0]
    assert_best(run, reference, steps=3 * EPOCH)
    assert_last(run, reference("best", keep_best=None))


def test_an_interrupted_run_has_the_last_model(warm: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more: tuple[Any, ...] = ("--workers", "2", "--threads", "1", "--set", "delay=0.03")
    with start("train", job_file("best"), "--out", out, *more) as process:
        events_until(out, process, EPOCH + 3)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
    run = Run(out)
    assert process.returncode == 130
    assert (run.result["model"], run.result["best"]["step"], run.result["test"]) == ("last", EPOCH, {})
    for name, tensor in last_weights(run).items():
        assert np.array_equal(tensor.numpy(), run.tensors[name])
