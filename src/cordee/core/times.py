"""Where the time of steps went: what each worker reported alone, put together to tell waiting from communication.

A worker knows how long it was blocked in a collective, not why. The stamps that all workers took *before* it do: until
the last one had arrived, the others waited; the rest is communication. Reports are processed in blocks of steps,
column by column: the record of a long run has millions of steps.

The first step of a start begins for each worker when it is ready. What it waits there until the last one is ready is
no time of a step: it belongs to the start.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cordee.core.events import Event, RegroupEvent, StartEvent, TimesEvent

PARTS = ("data", "compute", "callbacks", "communication", "waiting")
"""What a step's time is made of."""
MOST_OPEN = 20_000
"""Steps that may wait for a worker's report; older ones are closed with the reports that came."""
_COLUMNS = ("data_ms", "compute_ms", "blocked_ms", "waited_ms", "samples", "arrived", "callbacks_ms")
"""Of a `times` event: what waiting is told by."""
_MORE = ("hidden_ms", "sent", "plain", "paused_ms")
"""Of a `times` event: what blocks take over as it is."""
COSTS = ("hidden", "sent", "plain")
"""What the communication of a step took beside its time: hidden milliseconds, bytes sent, and those without a codec."""


@dataclass(frozen=True)
class Block:
    """Some consecutive steps of one worker, one entry per step; times in milliseconds."""

    data: list[float]
    compute: list[float]
    communication: list[float]
    waiting: list[float]
    samples: list[int]
    arrived: list[float]
    """When the worker came to the collective: in seconds, by the launcher's clock."""
    waited: list[float]
    """The part of `waiting` that lies before the arrival, within the passes."""
    callbacks: list[float]
    hidden: list[float]
    """The part of `compute` in which communication was under way."""
    sent: list[int]
    """Bytes."""
    plain: list[int]
    """What they would have been without a codec."""
    paused: list[float]
    """In which the process did not run, within whatever part of the step."""

    def cut(self, begin: int, end: int) -> Block:
        """Some of its steps, by their places in it."""
        return Block(*(getattr(self, name)[begin:end] for name in self.__dataclass_fields__))

    @property
    def began(self) -> float:
        """When the first of its steps began, by the launcher's clock."""
        return self.arrived[0] - (self.data[0] + self.compute[0] + self.callbacks[0] + self.waited[0]) / 1e3


OnBlock = Callable[[int, Mapping[int, Block]], None]
"""Called with the number of the block's first step (from 0) and the block of each worker."""


class _Report(NamedTuple):
    """What a worker reported at once: columns in the order of `_COLUMNS` and `_MORE`."""

    first: int
    end: int
    columns: list[list[Any]]

    def cut(self, first: int, end: int) -> _Report:
        return _Report(first, end, [column[first - self.first : end - self.first] for column in self.columns])


class Breakdown:
    """Tells waiting from communication in `times` records as they come in, block by block."""

    def __init__(self, on_block: OnBlock) -> None:
        """Nothing was reported yet."""
        self._on_block = on_block
        self._members: frozenset[int] = frozenset()
        self._open: dict[int, deque[_Report]] = {}
        self._ends: dict[int, int] = {}
        """The step after the last one that each worker reported."""

    def take(self, event: Event) -> None:
        """An event of a run: its starts, new groups and times count."""
        if isinstance(event, StartEvent):
            self.finish()
            self._ends.clear()
            self.expect(range(event.workers))
        elif isinstance(event, RegroupEvent):
            self.expect(event.workers)
        elif isinstance(event, TimesEvent):
            self.add(event)

    def expect(self, workers: Iterable[int]) -> None:
        """From here on these are the workers of a step; what a lost one did not report will not come any more."""
        self._members = frozenset(workers)
        self._close_common()

    def add(self, event: TimesEvent) -> None:
        """One worker's times of some consecutive steps."""
        worker, first = event.worker, event.first
        report = _Report(first, first + len(event.arrived), [getattr(event, name) for name in _COLUMNS + _MORE])
        if first < self._ends.get(worker, 0):  # the next session of a script counts its steps from 0 again
            self.finish()
            self._ends.clear()
        self._open.setdefault(worker, deque()).append(report)
        self._ends[worker] = report.end
        self._close_common()
        open_from = min((reports[0].first for reports in self._open.values() if reports), default=report.end)
        if report.end - open_from > MOST_OPEN:
            self._close(report.end - MOST_OPEN)

    def finish(self) -> None:
        """Close what is still open with the reports that came."""
        self._close(max(self._ends.values(), default=0))

    def _close_common(self) -> None:
        """Close the steps that all members have reported."""
        if self._members and self._members <= self._ends.keys():
            self._close(min(self._ends[worker] for worker in self._members))

    def _close(self, until: int) -> None:
        """Close the steps below `until`, in pieces within which the same workers have reported."""
        while waiting := [one for one in self._open.values() if one and one[0].first < until]:
            first = min(reports[0].first for reports in waiting)
            bounds = {bound for reports in waiting for bound in reports[0][:2]} | {until}
            end = min(bound for bound in bounds if bound > first)
            columns = {}
            for worker, reports in self._open.items():
                if reports and reports[0].first == first:
                    report = reports.popleft()
                    columns[worker] = report.cut(first, end).columns
                    if end < report.end:
                        reports.appendleft(report.cut(end, report.end))
            self._on_block(first, _to_blocks(columns))


def _to_blocks(reports: Mapping[int, list[list[Any]]]) -> dict[int, Block]:
    """Tell waiting from communication: all waited until the last worker arrived."""
    arrivals = [columns[5] for columns in reports.values()]
    lasts = list(map(max, *arrivals)) if len(arrivals) > 1 else arrivals[0]
    blocks = {}
    for worker, (data, compute, blocked, waited, samples, arrived, callbacks, *more) in reports.items():
        waiting = [
            known + max(0.0, min(whole - known, (last - own) * 1e3))
            for whole, known, last, own in zip(blocked, waited, lasts, arrived)  # noqa: B905 - of equal length
        ]
        communication = [whole - waits for whole, waits in zip(blocked, waiting)]  # noqa: B905
        blocks[worker] = Block(data, compute, communication, waiting, samples, arrived, waited, callbacks, *more)
    return blocks


def without_start(blocks: Mapping[int, Block]) -> dict[int, Block]:
    """The first block of a start, but its first step begins for all workers when the last one was ready."""
    ready = max(block.began for block in blocks.values())
    return {
        worker: replace(block, waiting=[max(0.0, block.waiting[0] - 1e3 * (ready - block.began)), *block.waiting[1:]])
        for worker, block in blocks.items()
    }


class TimeTotals(Breakdown):
    """Seconds by worker and part, from the `times` records of one start."""

    def __init__(self) -> None:
        """Nothing was reported yet."""
        super().__init__(self._add_block)
        self._totals: dict[int, dict[str, float]] = {}

    def totals(self) -> dict[str, dict[str, float]]:
        """Of all that was reported."""
        self.finish()
        return {
            str(worker): {part: round(seconds, 4) for part, seconds in parts.items()}
            for worker, parts in sorted(self._totals.items())
        }

    def _add_block(self, first: int, blocks: Mapping[int, Block]) -> None:
        for worker, block in (blocks if self._totals else without_start(blocks)).items():
            parts = self._totals.setdefault(worker, dict.fromkeys(PARTS, 0.0))
            for part in PARTS:
                parts[part] += sum(getattr(block, part)) / 1e3


def shares(totals: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The part of the workers' time that went into each part, from 0 to 1; empty if there was none."""
    whole = sum(sum(parts.values()) for parts in totals.values())
    return {part: sum(parts[part] for parts in totals.values()) / whole for part in PARTS} if whole else {}


def percentiles(values: Sequence[float], *percents: int) -> list[float]:
    """The values below which so many percent of `values` lie, from 1 to 99, between neighbours in proportion."""
    if len(values) == 1:
        return [values[0]] * len(percents)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return [cuts[percent - 1] for percent in percents]
