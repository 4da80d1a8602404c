"""Watches the steps of a run for a worker that makes the others wait: an event when it begins, one when it is over.

A worker is named after `TIMES` windows of steps in a row, each of which it made longer by `BEGINS` of a step or more,
until as many in a row were longer by less than `ENDS`. A false alarm is worse than a late one: whatever else runs on a
machine holds up now this worker, now that.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cordee.core.events import (
    Event,
    JoinedEvent,
    LeftEvent,
    LinksEvent,
    Listener,
    PlanEvent,
    SharesEvent,
    StartEvent,
    StragglerEvent,
    WorkerEvent,
)
from cordee.core.plan import Plan
from cordee.core.times import Block, Breakdown
from cordee.runtime.coordinator.remedies import remedy
from cordee.runtime.coordinator.straggling import Cause, Link, Slow, Times, judge

WINDOW_S, WINDOW_STEPS = 2.0, 4
"""A window has at least so many steps, which took at least so long."""
TIMES = 3
BEGINS, ENDS = 0.20, 0.10
SKIPPED = 2
"""The first steps with new members also pay for what is done once."""
_PARTS = ("samples", "data", "compute", "callbacks", "communication", "waiting", "paused")


@dataclass
class _Case:
    """What is held against a worker."""

    first: int
    """The first step of it."""
    seen: list[Slow] = field(default_factory=list)
    """The last windows in which it was slow."""
    named: Cause | None = None
    faster: list[int] = field(default_factory=list)
    """The last windows in which it was not, by their first steps."""
    reshared: bool = False
    """Whether shares were changed since it was named."""


class Stragglers(Breakdown):
    """Takes the events of a run, and tells of each worker that begins or ceases to make the others wait."""

    def __init__(self, plan: Plan, tell: Listener) -> None:
        """Nothing was reported yet."""
        super().__init__(self._add_block)
        self._plan, self._tell = plan, tell
        self._workers: dict[int, WorkerEvent] = {}
        self._links: list[Link] = []
        self._replaced: dict[int, int] = {}
        """By lost worker, who came in its place."""
        self._left: set[int] = set()
        """Workers that were not lost: they have left."""
        self._cases: dict[tuple[int, bool], _Case] = {}
        """By worker and whether it is about its link."""
        self._begin_window(SKIPPED)

    def take(self, event: Event) -> None:
        """An event of the run."""
        match event:
            case StartEvent():
                self._cases.clear()
            case PlanEvent():
                self._plan = Plan.from_dict(event.plan)
            case WorkerEvent():
                self._workers[event.worker] = event
            case LinksEvent():
                self._links = event.links
            case JoinedEvent() if event.replaces is not None:
                self._replaced[event.replaces] = event.worker
            case LeftEvent():
                self._left.add(event.worker)
            case SharesEvent():
                for case in self._cases.values():
                    case.reshared = True
        super().take(event)

    def expect(self, workers: Iterable[int]) -> None:
        """From here on these are the workers of a step: who is not among them makes no one wait."""
        super().expect(workers)
        self._begin_window(SKIPPED)
        for (worker, network), case in list(self._cases.items()):
            if worker not in self._members:
                del self._cases[worker, network]
                came = self._replaced.get(worker)
                place = "" if came is None else f", and worker {came} came in its place"
                gone = "it left" if worker in self._left else f"it was lost{place}"
                self._end(worker, case, self._end_step, gone)

    # ------------------------------------------------------------- windows

    def _begin_window(self, skip: int = 0) -> None:
        self._skip, self._first, self._steps = skip, 0, 0
        self._sums: dict[int, list[float]] = {}

    @property
    def _end_step(self) -> int:
        """After the last step that is known."""
        return max(self._ends.values(), default=0)

    def _add_block(self, first: int, blocks: Mapping[int, Block]) -> None:
        if blocks.keys() != self._members or first < self._first:  # a step without all reports says nothing
            self._begin_window()
        if blocks.keys() != self._members:
            return
        count = len(next(iter(blocks.values())).samples)
        begin = min(self._skip, count)
        self._skip -= begin
        if begin == count:
            return
        self._first = self._first if self._steps else first + begin
        self._steps += count - begin
        for worker, block in blocks.items():
            new = [sum(getattr(block, part)[begin:]) for part in _PARTS]
            self._sums[worker] = [
                one + more for one, more in zip(self._sums.get(worker, [0.0] * len(new)), new, strict=True)
            ]
        times = {worker: self._times(worker, sums) for worker, sums in self._sums.items()}
        if self._steps >= WINDOW_STEPS and self._steps * next(iter(times.values())).step >= 1e3 * WINDOW_S:
            self._judge(judge(times, self._links, staged=self._plan.pipeline > 1))
            self._begin_window()

    def _times(self, worker: int, sums: list[float]) -> Times:
        known = self._workers.get(worker)
        return Times(known.host if known else "", *(one / self._steps for one in sums))

    def _judge(self, found: list[Slow]) -> None:
        slow = {(one.worker, one.cause == "network"): one for one in found if one.part >= ENDS}
        for key in {*self._cases, *slow}:
            case, one = self._cases.setdefault(key, _Case(self._first)), slow.get(key)
            if one is not None and (case.named or one.part >= BEGINS):
                case.seen, case.faster = [*case.seen, one][-TIMES:], []
                if case.named is None and len(case.seen) == TIMES:
                    self._begin(case)
                continue
            case.faster.append(self._first)
            if case.named is None or len(case.faster) == TIMES:
                del self._cases[key]
            if case.named is not None and len(case.faster) == TIMES:
                done = "share=balanced changed the shares" if case.reshared else "it recovered by itself"
                self._end(key[0], case, case.faster[0], done)

    # ------------------------------------------------------------- what is told

    def _begin(self, case: _Case) -> None:
        worker, cause = case.seen[-1].worker, statistics.mode(one.cause for one in case.seen)
        case.named = cause
        here = [
            one for number, one in self._workers.items() if number in self._members and one.host == self._host(worker)
        ]
        self._say(worker, case, self._end_step, over=False, done=remedy(cause, self._plan, len(self._members), here))

    def _end(self, worker: int, case: _Case, end: int, done: str) -> None:
        if case.named is not None:
            self._say(worker, case, end, over=True, done=done)

    def _say(self, worker: int, case: _Case, end: int, *, over: bool, done: str) -> None:
        assert case.named is not None
        seen = [one for one in case.seen if one.cause == case.named] or case.seen
        took, usual = (
            round(statistics.fmean(getattr(one, name) for one in seen), 3) for name in ("took_ms", "usual_ms")
        )
        step, steps = (end if over else case.first) + 1, max(0, end - case.first)
        self._tell(StragglerEvent(worker, self._host(worker), case.named, step, steps, took, usual, over, done))

    def _host(self, worker: int) -> str:
        known = self._workers.get(worker)
        return known.host if known else ""
