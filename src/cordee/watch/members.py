"""The workers of a run as its events tell of them: who they are, when they were there, what they used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby

from cordee.core.events import FailureEvent, HeldEvent, LeftEvent, MemoryEvent, StepEvent, UsageEvent, WorkerEvent
from cordee.core.times import COSTS, MOST_OPEN, PARTS, Block
from cordee.core.usage import BYTES
from cordee.watch.summary import Curve, StepParts, Worker
from cordee.watch.thin import Row, Thinner, column, places, rate

BETWEEN_S = 0.2
"""Two readings closer than this give no rate."""
_COLUMNS = (*PARTS, "samples", *COSTS)
"""Of the steps of a worker."""


@dataclass
class _Readings:
    """What has to be remembered of a worker from one event to the next; times are in seconds of running."""

    since: float | None = None
    """Since when it has been there; None while it is not."""
    passed: float = 0.0
    cpu: float = 0.0
    """Time and processor time between its readings: what was used before belongs to no time that is known."""
    last: tuple[float, float, float] | None = None
    """Time, processor time and bytes of the reading that the next rate begins with; None before there is one."""


class Members:
    """All workers of a run, start by start; times are given in seconds of running."""

    def __init__(self, expected: int) -> None:
        """`expected` workers decide how finely each is kept: many workers are kept more coarsely."""
        workers = max(1, expected)
        self._usage_rows = max(12, min(200, 4000 // workers))
        self._usage: dict[int, Thinner] = {}
        """By number, over all starts."""
        self._parts = Thinner(max(12, min(300, 6000 // workers)))
        self._sharing: frozenset[int] = frozenset()
        """The workers that took part in the last steps."""
        self._workers: dict[tuple[int, int], tuple[Worker, _Readings]] = {}
        """By start and number."""
        self._start = 1
        self._committed: dict[int, int] = {}
        """Samples of the steps of this start that were not reported yet."""
        self._unreported = 0
        """Samples of this start that were committed and not reported."""

    def on_worker(self, event: WorkerEvent, now: float) -> None:
        """A worker introduced itself; a script that opens a second session does so again."""
        worker, readings = self._of(event.worker)
        self._leave(worker, readings, now)
        worker.host, worker.pid, worker.lost = event.host, event.pid, ""
        worker.device, worker.threads, worker.cores = event.device, event.threads, event.cores
        readings.since, readings.last = now, None  # what it used in between, alone, is not known to the second

    def on_failure(self, event: FailureEvent | LeftEvent, now: float) -> None:
        """A worker is gone; one that left of itself is told by that word."""
        worker, readings = self._of(event.worker)
        worker.host, worker.lost = worker.host or event.host, event.reason
        self._leave(worker, readings, now)

    on_left = on_failure

    def on_held(self, event: HeldEvent, now: float) -> None:
        """What a worker holds of the state; a script may have several optimizers."""
        worker, _ = self._of(event.worker)
        for name in ("parameters", "gradients", "optimizer"):
            worker.held[name] = worker.held.get(name, 0) + getattr(event, name)

    def end_start(self, start: int, now: float) -> None:
        """A start of the run is over; the one with the next number will follow."""
        members = [self._leave(*member, now) for key, member in self._workers.items() if key[0] == self._start]
        if self._unreported > 0:  # by those that were lost; by all if the whole run was killed
            for worker in [one for one in members if one.lost] or members:
                worker.at_least = True
        self._committed.clear()
        self._unreported, self._start = 0, start + 1

    def go_on_after(self, step: int) -> None:
        """The run was resumed after `step`."""
        self._parts.go_on_after(step)

    def on_step(self, event: StepEvent, now: float) -> None:
        """A step was committed."""
        if len(self._committed) > MOST_OPEN:
            self._committed.clear()
        self._committed[event.step - 1] = event.samples
        self._unreported += event.samples

    def add_times(self, first: int, blocks: Mapping[int, Block], clock: Callable[[float], float]) -> None:
        """Where the time of some consecutive steps went; `clock` gives seconds of running for a time of day.

        Steps that a worker did not report only count in the sums: they say nothing about shares.
        """
        for number, block in blocks.items():
            worker, _ = self._of(number)
            worker.steps += len(block.samples)
            worker.samples += sum(block.samples)
            for part in PARTS:
                worker.time_s[part] += sum(getattr(block, part)) / 1e3
            worker.paused_s += sum(block.paused) / 1e3
            for cost in COSTS:
                worker.costs[cost] += sum(getattr(block, cost)) / (1e3 if cost == "hidden" else 1)
        reported = [sum(samples) for samples in zip(*(block.samples for block in blocks.values()), strict=True)]
        self._unreported -= sum(reported)
        whole = [self._committed.pop(step, None) == count for step, count in enumerate(reported, start=first)]
        for is_whole, chosen in groupby(range(len(whole)), whole.__getitem__):
            if is_whole:
                run = list(chosen)
                self._add_rows(first, run[0], run[-1] + 1, blocks, clock)

    def _add_rows(
        self, first: int, begin: int, end: int, blocks: Mapping[int, Block], clock: Callable[[float], float]
    ) -> None:
        """The steps of a block from place `begin` to before `end`."""
        if blocks.keys() != self._sharing:
            self._sharing = frozenset(blocks)
            self._parts.cut()
        arrived = next(iter(blocks.values())).arrived
        while begin < end:
            until = min(end, begin + self._parts.room())
            row = self._parts.row(first + until, clock(arrived[until - 1]), until - begin)
            for number, block in blocks.items():
                for name in _COLUMNS:
                    row.note_all((number, name), getattr(block, name)[begin:until])
            begin = until

    def on_memory(self, event: MemoryEvent, now: float) -> None:
        """What a worker is forecast to need."""
        worker, _ = self._of(event.worker)
        worker.forecast_mb = event.total / 2**20

    def on_usage(self, event: UsageEvent, now: float) -> None:
        """What a worker has used since it was started."""
        worker, readings = self._of(event.worker)
        worker.cpu_s = event.cpu_s
        for name in BYTES:
            setattr(worker, name, getattr(event, name))
        worker.memory_mb = max(worker.memory_mb, event.memory_mb)
        worker.gpu_mb = max(worker.gpu_mb, event.gpu_mb)
        reading = (now, worker.cpu_s, worker.bytes_sent)
        passed, cpu, sent = (after - before for after, before in zip(reading, readings.last or reading, strict=True))
        if readings.last is not None and passed < BETWEEN_S:
            return
        readings.last = reading
        readings.passed += passed
        readings.cpu += cpu
        row = self._usage.setdefault(worker.worker, Thinner(self._usage_rows)).row(0, now)
        spent = {"passed": passed, "cpu": cpu, "sent": sent / 2**20}
        for name, value in {**spent, "memory_mb": event.memory_mb, "gpu_mb": event.gpu_mb}.items():
            row.note(name, value)

    def _of(self, number: int) -> tuple[Worker, _Readings]:
        key = (self._start, number)
        if key not in self._workers:
            self._workers[key] = (Worker(number, start=self._start), _Readings())
        return self._workers[key]

    @staticmethod
    def _leave(worker: Worker, readings: _Readings, now: float) -> Worker:
        if readings.since is not None:
            worker.spans += ((round(readings.since, 3), round(max(now, readings.since), 3)),)
            readings.since = None
        return worker

    def workers(self) -> tuple[Worker, ...]:
        """Every worker of every start, by start and number; no event can be taken afterwards."""
        for worker, readings in self._workers.values():
            if readings.passed >= BETWEEN_S:
                worker.cpu_cores = round(readings.cpu / readings.passed, 3)
            worker.cpu_s = round(worker.cpu_s, 3)
            worker.time_s = {part: round(seconds, 4) for part, seconds in worker.time_s.items()}
            worker.paused_s = round(worker.paused_s, 4)
            worker.costs = {
                name: round(value, 4) if name == "hidden" else int(value) for name, value in worker.costs.items()
            }
            worker.hours = round(sum(end - begin for begin, end in worker.spans) / 3600, 6)
        return tuple(worker for _, (worker, _) in sorted(self._workers.items(), key=lambda item: item[0]))

    def parts(self) -> StepParts:
        """Where the time went over the course of the run."""
        rows = self._parts.rows
        return StepParts(
            *places(rows),
            count=tuple(row.count for row in rows),
            workers={
                str(number): {name: column(rows, (number, name)) for name in _COLUMNS}
                for number in sorted({number for row in rows for number, _ in row.cells})
            },
        )

    def usage(self) -> dict[str, Curve]:
        """What each worker used over the course of the run, over seconds only."""
        return {str(number): _usage(thinner.rows) for number, thinner in sorted(self._usage.items())}


def _usage(rows: list[Row]) -> Curve:
    values = {"cores": rate(rows, "cpu", "passed"), "sent_mb_s": rate(rows, "sent", "passed")}
    values |= {name: column(rows, name) for name in ("memory_mb", "gpu_mb")}
    return Curve(seconds=tuple(row.seconds for row in rows), values=values)
