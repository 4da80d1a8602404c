"""Steps of which some workers' reports never came: what is known of them is counted, what is not is said."""

from __future__ import annotations

from pathlib import Path

from cordee.watch.summarise import summarise
from cordee.watch.summary import Summary
from cordee.watch.words import worker_columns
from records import T0, Event, event, start, step, times, write

REPORTED = (5.0, 40.0, 55.0, 0.0)
"""The parts of a step of 100 ms."""


def counts(summary: Summary) -> list[tuple[str, str]]:
    """Steps and samples of each worker, as the tables show them."""
    shown = {name: text for name, _, text in worker_columns(summary)}
    return [(shown["steps"](one), shown["samples"](one)) for one in summary.workers]


def lose(at: float, worker: int, left: int) -> Event:
    return event("failure", at, worker=worker, host="here", reason="killed by SIGKILL", left=left)


def test_steps_that_a_lost_worker_did_not_report_say_nothing_of_shares(tmp_path: Path) -> None:
    made = [*start(0.0, 2), *(step(2.0 + 0.1 * number, number) for number in (1, 2, 3))]
    made += [times(2.3, 0, 0, [2.05, 2.15], REPORTED, 6), times(2.3, 1, 0, [2.05], REPORTED, 6), lose(2.3, 1, 1)]
    made += [event("regroup", 2.3, generation=2, workers=[0], ms=1.0), times(2.4, 0, 2, [2.25], REPORTED, 12)]
    summary = summarise(write(tmp_path, made))
    assert summary.split.step == (1, 3)
    assert summary.split.workers["0"]["samples"] == (6.0, 12.0)
    assert summary.split.workers["1"]["samples"] == (6.0, None)
    assert summary.workers[0].steps == 3  # but its time counts
    assert counts(summary) == [("3", "24"), ("≥ 1", "≥ 6")]


def test_of_two_that_were_lost_together_it_is_at_least_so_much(tmp_path: Path) -> None:
    made = [*start(0.0, 3), step(2.1, 1), *(times(2.1, number, 0, [2.05], REPORTED, 4) for number in range(3))]
    made += [step(2.2, 2), lose(2.25, 1, 2), lose(2.26, 2, 1), event("regroup", 2.3, generation=2, workers=[0], ms=1.0)]
    made += [times(2.3, 0, 1, [2.15], REPORTED, 4)]
    summary = summarise(write(tmp_path, made))
    assert counts(summary) == [("2", "8"), ("≥ 1", "≥ 4"), ("≥ 1", "≥ 4")]


def test_steps_that_nobody_reported_are_missing_of_all_who_were_there(tmp_path: Path) -> None:
    """The launcher was killed: of eleven steps the workers had reported one, worker 1 two."""
    made = [*start(0.0, 2), *(step(2.0 + 0.1 * number, number) for number in range(1, 12))]
    made += [times(2.1, 0, 0, [2.05], REPORTED, 6), times(2.2, 1, 0, [2.05, 2.15], REPORTED, 6)]
    summary = summarise(write(tmp_path, made), T0 + 3600.0)
    assert counts(summary) == [("≥ 1", "≥ 6"), ("≥ 2", "≥ 12")]
    assert [one.step_ms for one in summary.workers] == [100.0, 100.0]
    assert summary.split.step == (1,)


def test_of_workers_that_were_all_lost_it_is_at_least_so_much(tmp_path: Path) -> None:
    made = [*start(0.0, 2), step(2.1, 1), step(2.2, 2), lose(2.3, 1, 1), lose(2.3, 0, 0)]
    made += [times(2.1, number, 0, [2.05], REPORTED, 6) for number in (0, 1)]
    summary = summarise(write(tmp_path, made))
    assert counts(summary) == [("≥ 1", "≥ 6")] * 2
