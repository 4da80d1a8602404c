from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import StorageError
from cordee.watch.digest import MOST_OF_A_KIND, summarise
from cordee.watch.latency import latency
from cordee.watch.summary import Worker
from cordee.watch.thin import Thinner, column
from cordee.watch.words import amount, duration, ending, figure, losses, milliseconds, verdict
from records import T0, epoch, event, long_run, start, step, times, usage, write

SHORT = (5.0, 40.0, 55.0, 0.0)
"""A worker that waits."""
LONG = (5.0, 80.0, 15.0, 0.0)
"""The one that it waits for, 40 ms later."""


def ten_steps(first: int = 1, begin: float = 2.0) -> list[dict[str, Any]]:
    """Ten steps of two workers, 100 ms each; worker 1 comes 40 ms later than worker 0."""
    ends = [begin + 0.1 * (place + 1) for place in range(10)]
    made = [step(end, first + place, loss=2.0 - 0.1 * place) for place, end in enumerate(ends)]
    made.append(times(ends[-1], 0, first - 1, [end - 0.055 for end in ends], SHORT, 6))
    made.append(times(ends[-1], 1, first - 1, [end - 0.015 for end in ends], LONG, 6))
    return made


def end(at: float, code: int = 0, reason: str = "completed") -> dict[str, Any]:
    return event("end", at, reason=reason, code=code, message="")


# ------------------------------------------------------------- a plain run


def test_a_run_in_numbers(tmp_path: Path) -> None:
    checkpoint = event("checkpoint", 3.06, step=10, ms=5.0)
    made = [*start(0.0, 2), *ten_steps(), epoch(3.05, 0, 10, {"loss": 0.9, "accuracy": 0.5}), checkpoint, end(4.0)]
    summary = summarise(write(tmp_path, made, plan="sync=allreduce", workers=2, job={"name": "one", "last_step": 10}))
    assert (summary.name, summary.state, summary.code, summary.starts) == ("one", "completed", 0, 1)
    assert (summary.steps, summary.last_step, summary.epochs, summary.samples) == (10, 10, 1, 120)
    assert summary.loss == pytest.approx(1.1)
    assert summary.validation == {"loss": 0.9, "accuracy": 0.5}
    assert summary.running_s == pytest.approx(4.0)
    assert summary.throughput == pytest.approx(120.0)
    assert summary.other_s == pytest.approx({"start": 2.0, "evaluation": 0.02, "saving": 0.005})
    assert summary.checkpoints == 1 and summary.failures == 0
    assert summary.losses.step == tuple(range(1, 11))
    assert summary.losses.seconds == pytest.approx([2.0 + 0.1 * place for place in range(1, 11)])
    assert summary.losses.values["loss"] == pytest.approx([2.0 - 0.1 * place for place in range(10)])
    assert summary.metrics.values == {"loss": (0.9,), "accuracy": (0.5,)}
    assert summary.metrics.step == (10,)
    assert json.loads(json.dumps(summary.to_dict(), allow_nan=False))["steps"] == 10


def test_where_the_time_went_by_worker(tmp_path: Path) -> None:
    summary = summarise(write(tmp_path, [*start(0.0, 2), *ten_steps(), end(4.0)]))
    quick, slow = summary.workers
    assert quick.time_s == pytest.approx({"data": 0.05, "compute": 0.4, "communication": 0.15, "waiting": 0.4})
    assert slow.time_s == pytest.approx({"data": 0.05, "compute": 0.8, "communication": 0.15, "waiting": 0.0})
    assert (quick.steps, quick.samples, quick.host, quick.pid) == (10, 60, "here", 100)
    assert quick.spans == ((1.0, 4.0),)
    assert quick.hours == pytest.approx(3 / 3600, abs=1e-6)
    assert summary.split.step == tuple(range(1, 11))
    assert summary.split.workers["0"]["waiting"] == pytest.approx([40.0] * 10, abs=1e-3)  # stamps are microseconds
    assert summary.split.workers["1"]["samples"] == (6.0,) * 10


def test_resources(tmp_path: Path) -> None:
    used = [usage(2.0, 0, 0.5, 100.0, 1000), usage(3.0, 0, 1.3, 150.0, 2000), usage(4.0, 0, 1.5, 120.0, 4000, 64.0)]
    summary = summarise(write(tmp_path, [*start(0.0, 1), step(2.5, 1), *used, end(4.0)]))
    only = summary.workers[0]
    assert (only.cpu_s, only.memory_mb, only.gpu_mb, only.bytes_sent) == (1.5, 150.0, 64.0, 4000)
    assert only.cpu_cores == pytest.approx(0.5)  # it came after a second
    assert summary.usage["0"].values["cores"] == pytest.approx((0.5, 0.8, 0.2))
    assert summary.usage["0"].values["memory_mb"] == (100.0, 150.0, 120.0)
    assert summary.usage["0"].values["sent_mb_s"] == pytest.approx([1000 / 2**20, 1000 / 2**20, 2000 / 2**20])
    assert summary.resources["worker_hours"] == pytest.approx(3 / 3600, abs=1e-6)


def test_percentiles_are_numpys() -> None:
    chance = random.Random(3)
    lengths = [chance.lognormvariate(2.0, 0.7) for _ in range(1237)]
    found = latency(lengths)
    assert [found.p50, found.p95, found.p99] == pytest.approx(np.percentile(lengths, [50, 95, 99]), abs=1e-4)
    assert sum(found.counts) + found.beyond == len(lengths)
    assert found.beyond == sum(one > found.edges[-1] for one in lengths) > 0
    counts, _ = np.histogram([one for one in lengths if one <= found.edges[-1]], bins=found.edges)
    assert np.abs(counts - found.counts).sum() <= 2  # an edge may fall to either side by rounding
    assert latency([]).counts == () and latency([5.0, 5.0]).counts == (2,)


# ------------------------------------------------------------- thinning


def test_a_long_series_becomes_short_and_loses_no_value() -> None:
    thinner = Thinner(100)
    values = [float((7919 * place) % 1000) for place in range(12_345)]
    for place, value in enumerate(values, start=1):
        thinner.row(place, place / 10).note("v", value)
    assert 50 <= len(thinner.rows) <= 100
    assert sum(one or 0.0 for one in column(thinner.rows, "v", "sum")) == sum(values)
    assert sum(row.count for row in thinner.rows) == len(values)
    assert thinner.rows[-1].step == len(values)
    steps = [0, *(row.step for row in thinner.rows)]
    for row, (before, upto) in zip(thinner.rows, itertools.pairwise(steps), strict=True):
        inside = values[before:upto]
        assert row.cells["v"] == [len(inside), sum(inside), min(inside), max(inside)]


def test_steps_that_are_done_again_are_marked_and_kept_apart() -> None:
    thinner = Thinner(10)
    for number in range(1, 31):
        thinner.row(number, float(number)).note("v", 1.0)
    thinner.go_on_after(20)
    for number in range(21, 26):
        thinner.row(number, 100.0 + number).note("v", 2.0)
    assert all(row.redone == (row.section == 0 and row.step > 20) for row in thinner.rows)
    assert set(column(thinner.rows, "v", "mean")) == {1.0, 2.0}


def test_more_sections_than_rows() -> None:
    thinner = Thinner(8)
    for number in range(1, 101):
        thinner.row(number, float(number)).note("v", 1.0)
        thinner.go_on_after(number)
    assert len(thinner.rows) <= 8
    assert sum(one or 0.0 for one in column(thinner.rows, "v", "sum")) == 100.0


def test_a_long_run_is_summed_up_in_little(tmp_path: Path) -> None:
    summary = summarise(write(tmp_path, long_run(20_000, 4)))
    assert summary.steps == 20_000 and len(summary.losses.step) <= 2000 and len(summary.split.step) <= 300
    assert summary.workers[1].steps == 20_000
    assert summary.workers[0].share("waiting") == pytest.approx(1.0 / 10.1, rel=0.01)
    low, high = summary.losses.values["loss_low"], summary.losses.values["loss_high"]
    assert all(one is not None and two is not None and one < two for one, two in zip(low, high, strict=True))
    assert len(json.dumps(summary.to_dict())) < 1_000_000


# ------------------------------------------------------------- failures


def lose(at: float, worker: int, left: int, reason: str = "killed by SIGKILL") -> dict[str, Any]:
    return event("failure", at, worker=worker, host="here", reason=reason, left=left)


def test_a_lost_worker(tmp_path: Path) -> None:
    """Steps are recorded a moment after they were committed: what counts is when they were."""
    late = step(2.1, 1)
    late["time"] = T0 + 2.3
    made = [
        *start(0.0, 2),
        lose(2.2, 1, 1),
        event("regroup", 2.25, generation=2, workers=[0], ms=50.0),
        late,
        step(2.5, 2, ms=400.0),
        step(2.6, 3),
        end(3.0),
    ]
    summary = summarise(write(tmp_path, made))
    failure, regroup, _ = summary.incidents
    assert (failure.kind, failure.worker, failure.step, failure.ms) == ("failure", 1, 1, 400.0)
    assert failure.seconds == pytest.approx(2.2)
    assert (regroup.kind, regroup.step, regroup.ms) == ("regroup", 1, 50.0)
    assert summary.failures == 1
    assert summary.workers[1].lost == "killed by SIGKILL" and summary.workers[0].lost == ""
    assert summary.workers[1].spans == ((1.0, 2.2),)
    (sentence,) = losses(summary)
    assert sentence == (
        "Worker 1 on here was lost: killed by SIGKILL, after step 1; the next step took 400 ms instead of 100 ms."
    )


def test_steps_that_a_lost_worker_did_not_report_say_nothing_of_shares(tmp_path: Path) -> None:
    made = [*start(0.0, 2), *(step(2.0 + 0.1 * number, number) for number in (1, 2, 3))]
    made += [times(2.3, 0, 0, [2.05, 2.15], SHORT, 6), times(2.3, 1, 0, [2.05], SHORT, 6), lose(2.3, 1, 1)]
    made += [event("regroup", 2.3, generation=2, workers=[0], ms=1.0), times(2.4, 0, 2, [2.25], SHORT, 12), end(3.0)]
    summary = summarise(write(tmp_path, made))
    assert summary.split.step == (1, 3)
    assert summary.split.workers["0"]["samples"] == (6.0, 12.0)
    assert summary.split.workers["1"]["samples"] == (6.0, None)
    assert summary.workers[0].steps == 3  # but its time counts


def test_too_many_incidents_are_counted_not_listed(tmp_path: Path) -> None:
    notes = [event("warning", 1.0 + number / 100, message=f"note {number}") for number in range(MOST_OF_A_KIND + 7)]
    summary = summarise(write(tmp_path, [*start(0.0, 1), *notes, lose(5.0, 0, 0)]))
    assert summary.left_out == 7
    assert summary.incidents[-1].kind == "failure"


# ------------------------------------------------------------- how it ended


@pytest.mark.parametrize(
    ("code", "reason", "state", "words"),
    [
        (0, "completed", "completed", "completed"),
        (130, "interrupted", "interrupted", "--resume"),
        (20, "worker failed", "failed", "worker failed (exit code 20)"),
    ],
)
def test_ends(code: int, reason: str, state: str, words: str, tmp_path: Path) -> None:
    summary = summarise(write(tmp_path, [*start(0.0, 1), step(2.0, 1), end(3.0, code, reason)]))
    assert (summary.state, summary.reason, summary.code) == (state, reason, code)
    assert words in ending(summary, T0 + 3.0)


def test_a_run_without_an_end(tmp_path: Path) -> None:
    write(tmp_path, [*start(0.0, 1), step(2.0, 1)])
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event":"step","ti')  # being written at this moment
    now = summarise(tmp_path, now=T0 + 10.0)
    assert (now.state, now.code, now.steps) == ("running", None, 1)
    assert "8.0 s ago" in ending(now, T0 + 10.0)
    later = summarise(tmp_path, now=T0 + 3600.0)
    assert later.state == "unknown" and "killed" in ending(later, T0 + 3600.0)


def test_nothing_but_a_start(tmp_path: Path) -> None:
    summary = summarise(write(tmp_path, [event("start", 0.0, workers=2, plan="p", resume=False)]), now=T0)
    assert (summary.steps, summary.loss, summary.latency.p50, summary.workers) == (0, None, 0.0, ())
    assert verdict(summary.workers) == ""


def test_a_loop_of_ones_own_has_no_job(tmp_path: Path) -> None:
    made = [event("start", 0.0, workers=1, plan="p", resume=False), step(2.0, 1), step(2.1, 2, epoch=1), end(3.0)]
    summary = summarise(write(tmp_path, made, target="scripts/loop.py"))
    assert (summary.name, summary.steps, summary.epochs, summary.last_step) == ("loop", 2, 2, None)


def test_files_that_are_missing(tmp_path: Path) -> None:
    assert summarise(tmp_path).state == "unknown"
    (tmp_path / "result.json").write_text('{"steps": 7, "loss": NaN, "test": {"accuracy": 0.5}}')
    (tmp_path / "run.json").write_text('{"target": "jobs/nice.py", "vers')
    summary = summarise(tmp_path)
    assert (summary.steps, summary.loss, summary.test, summary.name) == (7, None, {"accuracy": 0.5}, tmp_path.name)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, start(0.0, 1))
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write("not JSON\n")
    with pytest.raises(StorageError, match=r"events\.jsonl is damaged: line 4"):
        summarise(tmp_path)


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    made = [*start(0.0, 1), step(2.0, 1), step(2.1, 2, loss=None), end(3.0, 15, "diverged")]
    summary = summarise(write(tmp_path, made))
    assert summary.loss is None and summary.losses.values["loss"] == (1.0, None)
    assert figure(summary.loss) == "not finite"


# ------------------------------------------------------------- resumed


def test_a_resumed_run(tmp_path: Path) -> None:
    """Killed after step 10, resumed an hour later from step 6 on three workers; the old result does not count."""
    first = [*start(0.0, 2), *ten_steps(), event("result", 3.0, result={"steps": 10, "test": {"a": 1.0}})]
    write(tmp_path, [*first, usage(3.0, 0, 2.0, sent=50)])
    hour = 3603.0
    again = [*start(hour, 3, resume=True, steps=6), step(hour + 2.1, 7, loss=9.0), usage(hour + 2.2, 0, 1.0, sent=5)]
    summary = summarise(write(tmp_path, again), now=T0 + hour + 3.0)
    assert (summary.state, summary.starts, summary.steps, summary.test) == ("running", 2, 7, {})
    assert summary.running_s == pytest.approx(3.0 + 2.2)
    (resume,) = summary.incidents
    assert (resume.kind, resume.step) == ("resume", 6)
    assert resume.text == (
        "resumed after step 6 on 3 workers, 1 h after the last record; 4 steps beyond it are done again"
    )
    assert summary.losses.step == (*range(1, 11), 7)
    assert summary.losses.redone == (False,) * 6 + (True,) * 4 + (False,)
    assert summary.losses.seconds[-1] == pytest.approx(3.0 + 2.1)
    worker = summary.workers[0]
    assert worker.spans == ((1.0, 3.0), (4.0, 5.2))
    assert (worker.cpu_s, worker.bytes_sent) == (3.0, 55)
    assert worker.steps == 10


def test_a_resume_that_came_to_nothing(tmp_path: Path) -> None:
    made = [*start(0.0, 1), step(2.0, 1), end(3.0, 130, "interrupted")]
    made += [event("start", 10.0, workers=1, plan="p", resume=True), end(11.0, 41, "checkpoint")]
    summary = summarise(write(tmp_path, made))
    assert (summary.state, summary.code, summary.starts) == ("failed", 41, 2)
    assert [one.kind for one in summary.incidents] == ["end", "resume", "end"]
    assert summary.running_s == pytest.approx(4.0)


# ------------------------------------------------------------- words


def made_worker(number: int, data: float, compute: float, communication: float, waiting: float) -> Worker:
    """A worker of ten steps with these seconds."""
    parts = {"data": data, "compute": compute, "communication": communication, "waiting": waiting}
    return Worker(number, "h", 1, "cpu", 1, (), "", 10, 10, parts, 0.0, 0.0, 0.0, 0.0, 0, 0.0)


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        (
            [(0, 30, 30, 40), (0, 30, 30, 40), (0, 69, 30, 1)],
            "Worker 2 is the slowest: it spends 69% of its steps computing, 2.3 times as long as the others, "
            "while the others wait 40% of their time.",
        ),
        (
            [(60, 30, 10, 0), (5, 30, 10, 55)],
            "Worker 0 is the slowest: it spends 60% of its steps waiting for data, 12.0 times as long as the other, "
            "while the other waits 55% of its time.",
        ),
        ([(1, 90, 8, 1), (1, 89, 8, 2)], "No worker holds the others up"),
        ([(1, 20, 78, 1), (1, 20, 78, 1)], "Communication takes most of the time"),
        ([(80, 10, 8, 2), (80, 10, 8, 2)], "Most of the time is spent waiting for data"),
        ([(1, 30, 9, 60), (1, 30, 9, 60)], "The workers wait for each other by turns"),
        ([(20, 80, 0, 0)], "Worker 0 spends 80% of its steps computing and 20% waiting for data."),
    ],
)
def test_who_is_slow_and_why(workers: list[tuple[float, float, float, float]], said: str) -> None:
    made = [made_worker(number, *parts) for number, parts in enumerate(workers)]
    assert verdict(made).startswith(said)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (duration(0.0123), "12 ms"),
        (duration(59.94), "59.9 s"),
        (duration(60), "1 min"),
        (duration(3725), "1 h 2 min"),
        (duration(3600 * 50), "2 days 2 h"),
        (milliseconds(1.234), "1.23 ms"),
        (milliseconds(12.34), "12.3 ms"),
        (milliseconds(1234.5), "1234 ms"),
        (milliseconds(61_000), "1 min 1 s"),
        (amount(0), "0 B"),
        (amount(1536), "1.5 KiB"),
        (amount(300 * 2**20), "300 MiB"),
        (figure(0.12345), "0.1235"),
        (figure(1.5e-7), "1.500e-07"),
        (figure(0.0), "0.0000"),
    ],
)
def test_numbers_as_people_read_them(made: str, words: str) -> None:
    assert made == words
