"""Endless streams: the same training on any number of workers, after a resume, and when a worker was lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cordee.core.errors import CordeeError
from harness import Run, assert_same, train

Reference = Callable[..., Run]


@pytest.mark.parametrize("drawn", ["global", *(pytest.param(one, marks=pytest.mark.slow) for one in ("own", "torch"))])
def test_three_workers_train_as_one(drawn: str, reference: Reference, tmp_path: Path) -> None:
    run = train("streamed", tmp_path / "run", workers=3, drawn=drawn, plan="proportions=3:1:2")
    assert_same(run, reference("streamed", drawn=drawn))
    assert run.result["samples"] == 800


@pytest.mark.parametrize("starts", [False, True])
def test_a_resume_goes_on_in_the_stream(starts: bool, reference: Reference, tmp_path: Path) -> None:
    out, reads = tmp_path / "run", tmp_path / "reads"
    reads.mkdir()
    train("streamed", out, workers=3, starts=starts, stop_steps=5)
    train("streamed", out, workers=1, starts=starts, stop_steps=14, resume=True)
    run = train("streamed", out, workers=2, starts=starts, resume=True, reads=reads)
    assert_same(run, reference("streamed"))
    assert (int((reads / "0").read_text()) < 700) == starts


@pytest.mark.parametrize("fate", ["0:forward:5", pytest.param("2:forward:15", marks=pytest.mark.slow)])
def test_a_lost_worker_changes_nothing(fate: str, reference: Reference, tmp_path: Path) -> None:
    run = train("streamed", tmp_path / "run", workers=3, fate=fate)
    assert [event["worker"] for event in run.of("failure")] == [int(fate[0])]
    assert_same(run, reference("streamed"))


def test_a_stream_that_ends_ends_the_run_with_advice(warm: int, tmp_path: Path) -> None:
    with pytest.raises(CordeeError, match="ended after 600 samples"):
        train("streamed", tmp_path / "run", workers=2, ends=600)


def test_streams_that_differ_are_refused(warm: int, tmp_path: Path) -> None:
    with pytest.raises(CordeeError, match=r"not given the same.*endless stream"):
        train("streamed", tmp_path / "run", workers=2, wild=True)
