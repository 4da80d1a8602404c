from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from cordee.core.events import (
    Event,
    JoinedEvent,
    LeftEvent,
    LinksEvent,
    RegroupEvent,
    SharesEvent,
    StartEvent,
    StragglerEvent,
    TimesEvent,
    WorkerEvent,
)
from cordee.core.plan import Plan
from cordee.group.pauses import LEAST_S, Pauses
from cordee.runtime.coordinator.remedies import remedy
from cordee.runtime.coordinator.stragglers import Stragglers
from cordee.runtime.coordinator.straggling import Slow, Times, judge
from cordee.watch.progress import ProgressView
from cordee.watch.report import write_report
from cordee.watch.words import tell
from records import end, event, made, start, step, write

RING = [("a", "b", 10.0, 1.0), ("b", "c", 11.0, 1.0), ("c", "a", 900.0, 1.0)]
"""Host b has a slow link."""


def one(compute: float = 50.0, waiting: float = 0.0, host: str = "a", **more: float) -> Times:
    parts = {"samples": 10.0, "data": 1.0, "callbacks": 0.0, "communication": 10.0, "paused": 0.0, **more}
    return Times(host=host, compute=compute, waiting=waiting, **parts)


def worst(*times: Times, links: Sequence[tuple[str, str, float, float]] = ()) -> Slow | None:
    """What the most is lost by; None if nothing is worth a word."""
    found = [slow for slow in judge(dict(enumerate(times)), links) if slow.part >= 0.1]
    return max(found, key=lambda slow: slow.part, default=None)


@pytest.mark.parametrize("cause", ["data", "compute", "callbacks"])
def test_the_last_one_is_named_with_what_it_takes_longer_for(cause: str) -> None:
    slow = worst(one(waiting=80.0), one(**{cause: 51.0 + 80.0}), one(waiting=80.0))
    assert slow is not None
    assert (slow.worker, slow.cause, slow.took_ms) == (1, cause, 131.0)
    assert slow.usual_ms == {"data": 1.0, "compute": 50.0, "callbacks": 0.0}[cause]
    assert slow.part > 0.4


def test_nobody_is_named_alone_where_two_are_slow() -> None:
    assert worst(one(waiting=50.0), one(100.0), one(100.0)) is None


def test_nobody_is_named_for_whom_nobody_waits() -> None:
    assert worst(one(5.0), one(50.0), one(5.0)) is None


def test_a_larger_share_is_no_fault() -> None:
    assert worst(one(50.0, 100.0), one(150.0, samples=30.0)) is None
    slow = worst(one(50.0, 100.0), one(150.0, samples=15.0))
    assert slow is not None
    assert (slow.worker, slow.cause, slow.usual_ms) == (1, "compute", 75.0)
    assert worst(one(5.0, 145.0, samples=0.0), one(150.0)) is None, "with proportions=0:1 it has all of each batch"
    slow = worst(one(5.0, 145.0, samples=0.0), one(50.0, 100.0), one(150.0))
    assert slow is not None and (slow.worker, slow.usual_ms) == (2, 50.0), "it is compared with what has samples, too"


def test_the_workers_of_a_slow_host_are_compared_with_those_of_other_hosts() -> None:
    times = [one(waiting=50.0), one(waiting=50.0), one(100.0, host="b"), one(101.0, host="b")]
    slow = worst(*times)
    assert slow is not None and slow.worker == 2, "of equally slow ones always the same"


def test_a_pause_is_no_computing() -> None:
    slow = worst(one(waiting=60.0), one(110.0, paused=50.0), one(waiting=60.0, paused=3.0))
    assert slow == Slow(1, "paused", pytest.approx(60 / 121), 50.0, 1.5)


def test_a_pause_while_it_communicates() -> None:
    slow = worst(one(communication=70.0), one(communication=70.0, paused=60.0), one(communication=70.0))
    assert slow is not None and (slow.worker, slow.cause) == (1, "paused")
    assert worst(one(), one(waiting=60.0, paused=60.0), one()) is None, "it would have waited meanwhile"


def test_a_slow_link_is_that_of_the_host_that_has_no_fast_one() -> None:
    times = [one(communication=200.0, host=host) for host in "abc"]
    assert worst(*times) is None
    slow = worst(*times, links=RING)
    assert slow is not None and (slow.worker, slow.cause, slow.took_ms) == (1, "network", 200.0)
    assert slow.usual_ms == pytest.approx(200.0 * 11 / 900)
    assert worst(*(one(host=host, communication=5.0) for host in "abc"), links=RING) is None, (
        "what is sent over it takes no time"
    )
    assert worst(*times, links=[(*link[:2], 10.0, 1.0) for link in RING]) is None, "all links are slow"
    assert worst(*times[:2], links=[("a", "b", 10.0, 1.0), ("b", "a", 10.0, 1.0)]) is None, "one link has two ends"


def test_times_that_come_to_nothing() -> None:
    nothing = one(0.0, data=0.0, communication=0.0)
    assert judge({0: nothing, 1: nothing, 2: one(-0.01, data=0.0, host="b")}, RING) == []


def test_stages_are_not_compared() -> None:
    assert judge({0: one(waiting=80.0), 1: one(130.0)}, staged=True) == []
    assert judge({0: one(130.0)}) == []


# ------------------------------------------------------------- over the course of a run


class Recorded:
    """Feeds a watcher step by step; a step takes 100 ms, or as much longer as a worker does."""

    def __init__(self, plan: str = "auto", workers: int = 3) -> None:
        self.told: list[StragglerEvent] = []
        self.watch = Stragglers(Plan.parse(plan), self.tell)
        self.members = list(range(workers))
        self.watch.take(StartEvent(workers, plan, False))
        for number in self.members:
            self.come(number)
        self.step = 0

    def tell(self, event: Event) -> None:
        assert isinstance(event, StragglerEvent)
        self.told.append(event)

    def come(self, number: int) -> None:
        self.watch.take(WorkerEvent(number, "here", 100 + number, "cpu", 1, 64.0, 0))

    def steps(self, count: int, late: dict[int, float] | None = None) -> None:
        late = late or {}
        most = max(late.values(), default=0.0)
        for _ in range(count):
            arrived = {number: 1e6 + self.step + late.get(number, 0.0) / 1e3 for number in self.members}
            for number in self.members:
                own = late.get(number, 0.0)
                times = ([1.0], [60.0 + own], [39.0 + most - own], [0.0], [10], [arrived[number]])
                self.watch.add(TimesEvent(number, self.step, *times))
            self.step += 1


def test_an_event_when_it_begins_and_one_when_it_is_over() -> None:
    run = Recorded()
    run.steps(90)
    assert run.told == []
    run.steps(90, {2: 200.0})
    (begun,) = run.told
    assert (begun.worker, begun.host, begun.cause, begun.over) == (2, "here", "compute", False)
    assert 60 < begun.step <= 110 and begun.step + begun.steps <= 181
    assert begun.took_ms == pytest.approx(260.0, rel=0.3) and begun.usual_ms == pytest.approx(60.0, rel=0.1)
    assert "share=balanced in the plan" in begun.done
    assert "worker 2 on here makes the others wait since step" in tell(begun)
    run.steps(90)
    _, over = run.told
    assert (over.worker, over.cause, over.over) == (2, "compute", True)
    assert begun.step + over.steps == over.step and 80 <= over.steps <= 120
    assert "no longer" in tell(over)


def test_a_moment_is_no_straggler() -> None:
    run = Recorded()
    for number in range(30):
        run.steps(15, {number % 3: 200.0})  # each of them for three seconds
    assert run.told == []


def test_what_is_done_once_with_new_members_does_not_count() -> None:
    run = Recorded()
    run.steps(2, {1: 60_000.0})
    run.steps(90)
    assert run.told == []


def test_a_little_is_enough_to_stay_named_and_too_little_to_be_named() -> None:
    run = Recorded()
    run.steps(200, {1: 20.0})
    assert run.told == []
    run.steps(100, {1: 100.0})
    run.steps(200, {1: 20.0})
    assert [one.over for one in run.told] == [False]


def test_shares_that_were_changed_are_what_was_done() -> None:
    run = Recorded("share=balanced")
    run.steps(90, {1: 200.0})
    assert run.told[0].done == "share=balanced gives it fewer samples"
    run.watch.take(SharesEvent(91, [0, 1, 2], [10, 10, 10], [13, 4, 13], [60.0, 260.0, 60.0], "the start"))
    run.steps(90)
    assert run.told[1].done == "share=balanced changed the shares"


def test_a_straggler_is_lost_and_replaced() -> None:
    run = Recorded()
    run.steps(90, {1: 200.0})
    run.watch.take(JoinedEvent(3, "here", 1))
    run.members = [0, 2, 3]
    run.watch.take(RegroupEvent(2, run.members, 10.0))
    assert [one.over for one in run.told] == [False, True]
    assert run.told[1].done == "it was lost, and worker 3 came in its place"
    run.come(3)
    run.steps(90)
    assert len(run.told) == 2


def test_a_straggler_that_leaves_was_not_lost() -> None:
    run = Recorded()
    run.steps(90, {1: 200.0})
    run.watch.take(LeftEvent(1, "here", "asked by cordee scale", 2))
    run.members = [0, 2]
    run.watch.take(RegroupEvent(2, run.members, 10.0))
    assert [one.done for one in run.told if one.over] == ["it left"]


def test_reports_that_are_missing_say_nothing() -> None:
    run = Recorded()
    run.steps(30)
    run.members = [0, 1]  # worker 2 does not report, and is not lost
    run.steps(90, {1: 200.0})
    run.watch.finish()
    assert run.told == []


def test_links_are_heeded() -> None:
    run = Recorded(workers=3)
    for number, host in enumerate("abc"):
        run.watch.take(WorkerEvent(number, host, 1, "cpu", 1, 1.0, number))
    run.steps(60)
    assert run.told == []
    run.watch.take(LinksEvent(RING))
    run.steps(90)
    assert [(one.worker, one.host, one.cause) for one in run.told] == [(1, "b", "network")]


def test_remedies_name_what_there_is() -> None:
    quota = [WorkerEvent(number, "b", 1, "cpu", 1, 0.5, 1) for number in range(2)]
    assert remedy("compute", Plan(), 3, quota).endswith("its host allows 2 workers 0.5 cores")
    assert "share=balanced" in remedy("paused", Plan(), 3, quota)
    assert "share=balanced" not in remedy("compute", Plan.parse("shard=params"), 2)
    assert "sync=auto in the plan" in remedy("network", Plan(), 3)
    assert remedy("network", Plan.parse("sync=auto"), 3) == "sync=auto chooses what is sent over it"
    assert all(remedy(cause, Plan(), 3) for cause in ("data", "callbacks", "paused"))


def test_it_is_shown_while_the_run_goes_on_and_in_its_report(tmp_path: Path) -> None:
    about = {"worker": 1, "host": "b", "cause": "paused", "step": 7, "steps": 12, "took_ms": 50.0, "usual_ms": 0.0}
    record = event("straggler", 3.0, **about, over=False, done="nothing was done")
    words = "worker 1 on b makes the others wait since step 7: 50.0 ms of each step in which its process does not run"
    stream = io.StringIO()
    ProgressView(stream)(made(record))
    assert words in stream.getvalue()
    page = write_report(write(tmp_path / "run", [*start(0.0, 2), step(2.0, 1), record, end(4.0)])).read_text()
    assert words in page and ">straggler</td>" in page


def test_a_pause_takes_no_processor_time() -> None:
    pauses = Pauses()
    pauses.slept(0.001, 0.2)  # eight threads compute
    pauses.slept(0.5, 0.21)  # and were stopped with all others
    assert pauses.total_s == 0.5
    pauses.slept(0.5, 0.7)  # one of them kept the interpreter
    pauses.slept(LEAST_S / 2, 0.0)  # a busy machine
    assert pauses.total_s == 0.5
