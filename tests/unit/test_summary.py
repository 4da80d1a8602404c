from __future__ import annotations

import dataclasses
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import StorageError
from cordee.core.plan import Plan
from cordee.watch.incidents import MOST_OF_A_KIND
from cordee.watch.page import render, shown
from cordee.watch.series import latency
from cordee.watch.summarise import summarise
from cordee.watch.thin import Thinner, column
from cordee.watch.verdict import verdict
from cordee.watch.words import ending, figure, losses
from records import T0, end, epoch, event, long_run, start, step, times, usage, write

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


# ------------------------------------------------------------- a plain run


def test_a_run_in_numbers(tmp_path: Path) -> None:
    checkpoint = event("checkpoint", 3.9, step=10, ms=5.0, at=T0 + 3.06)
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
    assert summary.saves.seconds == pytest.approx((3.06,))  # when it was begun, not when it stood
    assert summary.losses.step == tuple(range(1, 11))
    assert summary.losses.seconds == pytest.approx([2.0 + 0.1 * place for place in range(1, 11)])
    assert summary.losses.values["loss"] == pytest.approx([2.0 - 0.1 * place for place in range(10)])
    assert summary.metrics.values == {"loss": (0.9,), "accuracy": (0.5,)}
    assert summary.metrics.step == (10,)
    assert json.loads(json.dumps(dataclasses.asdict(summary), allow_nan=False))["steps"] == 10


def test_where_the_time_went_by_worker(tmp_path: Path) -> None:
    summary = summarise(write(tmp_path, [*start(0.0, 2), *ten_steps(), end(4.0)]))
    quick, slow = summary.workers
    assert quick.time_s == pytest.approx(
        {"data": 0.05, "compute": 0.4, "callbacks": 0.0, "communication": 0.15, "waiting": 0.4}
    )
    assert slow.time_s == pytest.approx(
        {"data": 0.05, "compute": 0.8, "callbacks": 0.0, "communication": 0.15, "waiting": 0.0}
    )
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
    assert only.cpu_cores == pytest.approx(0.5)  # from the first reading on
    assert summary.usage["0"].values["cores"] == (None, pytest.approx(0.8), pytest.approx(0.2))
    assert summary.usage["0"].values["memory_mb"] == (100.0, 150.0, 120.0)
    assert summary.usage["0"].values["sent_mb_s"] == (None, *(pytest.approx(one / 2**20) for one in (1000, 2000)))
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
    summary = summarise(write(tmp_path, long_run(8_000, 4)))
    assert summary.steps == 8_000 and len(summary.losses.step) <= 2000 and len(summary.split.step) <= 300
    assert summary.workers[1].steps == 8_000
    assert summary.workers[0].share("waiting") == pytest.approx(1.0 / 10.1, rel=0.01)
    low, high = summary.losses.values["loss_low"], summary.losses.values["loss_high"]
    assert all(one is not None and two is not None and one < two for one, two in zip(low, high, strict=True))
    assert len(json.dumps(dataclasses.asdict(summary))) < 1_000_000


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


def test_rows_do_not_span_the_loss_of_a_worker(tmp_path: Path) -> None:
    """However long the run: no row mixes steps of two workers with steps of one."""
    made, at = start(0.0, 2), 2.0
    for number in range(1, 1001):
        at += 0.1
        made.append(step(at, number))
        made.append(times(at, 0, number - 1, [at - 0.05], SHORT, 6 if number <= 501 else 12))
        if number <= 501:
            made.append(times(at, 1, number - 1, [at - 0.05], SHORT, 6))
        if number == 501:
            made += [lose(at, 1, 1), event("regroup", at, generation=2, workers=[0], ms=1.0)]
    split = summarise(write(tmp_path, [*made, end(at)])).split
    assert 501 in split.step and len(split.step) < 300 and sum(split.count) == 1000
    for row, last in enumerate(split.step):
        shares = (split.workers["0"]["samples"][row], split.workers["1"]["samples"][row])
        assert shares == ((6.0, 6.0) if last <= 501 else (12.0, None))


def test_waiting_for_the_last_one_to_be_ready_belongs_to_the_start(tmp_path: Path) -> None:
    """Worker 0 is ready a second before worker 1; all share the same steps, so these take both equally long."""
    ends = [3.1, 3.2]
    made = [
        *start(0.0, 2),
        *(step(at, number, ms=1100.0 if number == 1 else 100.0) for number, at in enumerate(ends, 1)),
    ]
    made += [
        times(3.2, 0, 0, [2.05], (10.0, 40.0, 1050.0, 0.0), 6),
        times(3.2, 0, 1, [3.15], (10.0, 40.0, 50.0, 0.0), 6),
    ]
    made += [times(3.2, 1, 0, [3.05, 3.15], (10.0, 40.0, 50.0, 0.0), 6), end(4.0)]
    summary = summarise(write(tmp_path, made))
    assert [one.step_ms for one in summary.workers] == pytest.approx([100.0, 100.0], abs=0.01)
    assert summary.other_s["start"] == pytest.approx(3.0)
    assert summary.split.workers["0"]["waiting"] == pytest.approx([0.0, 0.0], abs=0.01)


def test_what_a_twin_did_and_how_fast_links_are_is_told(tmp_path: Path) -> None:
    links = [["a", "b", 94.1, 0.31], ["b", "a", 9.52, 1.0]]
    made = [*start(0.0, 2), event("links", 1.2, links=links), step(2.1, 1), event("fault", 2.5, what="cut b")]
    told = {one.kind: one.text for one in summarise(write(tmp_path, made), T0 + 3).incidents}
    assert told["links"] == "links between hosts: a to b 94 Mbit/s (0.31 ms), b to a 10 Mbit/s (1.00 ms)"
    assert told["fault"] == "cut b"
    page = render(summarise(tmp_path, T0 + 3), T0 + 3)
    assert "ϟ done on purpose" in page and 'title="cut b"' in page


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
        (20, "worker failed", "failed", "(exit code 20): worker failed"),
    ],
)
def test_ends(code: int, reason: str, state: str, words: str, tmp_path: Path) -> None:
    summary = summarise(write(tmp_path, [*start(0.0, 1), step(2.0, 1), end(3.0, code, reason)]))
    assert (summary.state, summary.reason, summary.code) == (state, reason, code)
    assert words in ending(summary, T0 + 3.0)


@pytest.mark.parametrize("said", ["after step 1: Stop(when=...)", "completed", ""])
def test_why_the_training_ended(said: str, tmp_path: Path) -> None:
    result = event("result", 2.5, result={"steps": 1, "ended": said})
    sentence = ending(summarise(write(tmp_path, [*start(0.0, 1), step(2.0, 1), result, end(3.0)])), T0 + 3.0)
    more = " The training ended after step 1: Stop(when=...)." if "Stop" in said else ""
    assert sentence == f"It completed after 3.0 s.{more}"


def test_a_session_with_a_plan_of_its_own(tmp_path: Path) -> None:
    own = {**Plan().to_dict(), "batchnorm": "replica"}
    made = [*start(0.0, 1), event("plan", 1.6, plan=own, faithfulness="statistical"), step(2.0, 1), end(3.0)]
    about = {"plan": "sync=allreduce", "faithfulness": "same"}
    summary = summarise(write(tmp_path, made, **about))
    assert (summary.plan, summary.faithfulness) == ("batchnorm=replica", "statistical")
    again = summarise(write(tmp_path, [*start(10.0, 1, resume=True), step(12.0, 1), end(13.0)], **about))
    assert (again.plan, again.faithfulness) == ("sync=allreduce", "same")  # that of the last start


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
    (tmp_path / "run.json").write_text('{"target": "jobs/nice.py", "vers')
    assert summarise(tmp_path).name == tmp_path.name


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
        "resumed after step 6 on 3 workers, 1 h after the last record; 4 steps beyond it will be done again"
    )
    assert summary.losses.step == (*range(1, 11), 7)
    assert summary.losses.redone == (False,) * 6 + (True,) * 4 + (False,)
    assert summary.losses.seconds[-1] == pytest.approx(3.0 + 2.1)
    assert [(one.start, one.worker) for one in summary.workers] == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    before, after = summary.workers[0], summary.workers[2]
    assert before.spans == ((1.0, 3.0),) and after.spans == ((4.0, 5.2),)
    assert (before.cpu_s, before.bytes_sent, before.steps, before.at_least) == (2.0, 50, 10, False)
    assert (after.cpu_s, after.bytes_sent, after.steps, after.at_least) == (1.0, 5, 0, True)
    assert summary.samples == 7 * 12  # of steps that were done twice the first time does not count
    assert summary.resources["cpu_s"] == 3.0 and summary.resources["bytes_sent"] == 55
    assert shown(summary) == (list(summary.workers), [0, 1, 2])


def test_a_worker_that_was_lost_before_a_resume_stays_lost(tmp_path: Path) -> None:
    """And the step in which it was is compared with its neighbours, not with the quick steps of the other start."""
    slow = [step(2.0 + number, number, ms=1000.0) for number in range(1, 6)]
    made = [*start(0.0, 2), *slow, lose(7.2, 1, 1), event("regroup", 7.3, generation=2, workers=[0], ms=90.0)]
    made += [step(8.5, 6, ms=1500.0), step(9.4, 7, ms=900.0), end(9.5, 130, "interrupted")]
    quick = [step(33.0 + number / 100, number, ms=10.0) for number in range(8, 40)]
    made += [*start(30.0, 2, resume=True, steps=7), *quick, end(40.0)]
    summary = summarise(write(tmp_path, made))
    assert [(one.start, one.worker, bool(one.lost)) for one in summary.workers] == [
        (1, 0, False),
        (1, 1, True),
        (2, 0, False),
        (2, 1, False),
    ]
    assert summary.failures == 1 and summary.latency.p50 == 10.0
    assert losses(summary) == [
        "Worker 1 on here was lost: killed by SIGKILL, after step 5; the next step took 1,500 ms instead of 1,000 ms."
    ]


def test_a_resume_that_came_to_nothing(tmp_path: Path) -> None:
    made = [*start(0.0, 1), step(2.0, 1), end(3.0, 130, "interrupted")]
    made += [event("start", 10.0, workers=1, plan="p", resume=True), end(11.0, 41, "checkpoint")]
    summary = summarise(write(tmp_path, made))
    assert (summary.state, summary.code, summary.starts) == ("failed", 41, 2)
    assert [one.kind for one in summary.incidents] == ["end", "resume", "end"]
    assert summary.running_s == pytest.approx(4.0)
