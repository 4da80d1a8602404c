"""The workers of a run as its events tell of them: who they are, when they were there, what they used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cordee.core.times import PARTS, Block
from cordee.watch.accounts import Missing
from cordee.watch.summary import Curve, Split, Worker
from cordee.watch.thin import Thinner

BETWEEN_S = 0.2
"""Two readings closer than this give no rate."""
MIB = 2**20


@dataclass
class _Member:
    """One worker of one start while its events come in."""

    host: str = ""
    pid: int | None = None
    device: str = ""
    threads: int | None = None
    since: float | None = None
    """Since when it has been there, in seconds of running; None while it is not."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    lost: str = ""
    steps: int = 0
    timed: int = 0
    """Those of its steps whose times it reported."""
    samples: int = 0
    at_least: bool = False
    samples_at_least: bool = False
    time_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    cores: float | None = None
    first: tuple[float, float] | None = None
    """Time and processor time of its first reading: what was used before belongs to no time that is known."""
    last: tuple[float, float, float] | None = None
    """Time, processor time and bytes of the reading that the next rate begins with; None before there is one."""
    cpu_s: float = 0.0
    bytes_sent: int = 0
    memory_mb: float = 0.0
    gpu_mb: float = 0.0


class Members:
    """All workers of a run, start by start; times are given in seconds of running."""

    def __init__(self, expected: int) -> None:
        """`expected` workers decide how finely each is kept: many workers are kept more coarsely."""
        workers = max(1, expected)
        self._usage_rows = max(12, min(200, 4000 // workers))
        self._usage: dict[int, Thinner] = {}
        """By number, over all starts."""
        self._split = Thinner(max(12, min(300, 6000 // workers)), sums=True)
        self._sharing: frozenset[int] = frozenset()
        """Who took part in the last steps."""
        self._members: dict[tuple[int, int], _Member] = {}
        """By start and number."""
        self._start = 1

    def came(self, worker: int, event: Mapping[str, Any], now: float) -> None:
        """A worker introduced itself; a script that opens a second session does so again."""
        member = self._of(worker)
        self._leave(member, now)
        member.host, member.pid = event["host"], event["pid"]
        member.device, member.threads = event["device"], event["threads"]
        member.cores = event.get("cores")
        member.since, member.lost = now, ""
        member.last = None  # what it used in between, alone, is not known to the second

    def lose(self, worker: int, host: str, reason: str, now: float) -> None:
        """A worker is gone."""
        member = self._of(worker)
        member.host = member.host or host
        member.lost = reason
        self._leave(member, now)

    def all_leave(self, start: int, now: float) -> None:
        """A start of the run is over; the one with the next number will follow."""
        for member in self._members.values():
            self._leave(member, now)
        self._start = start + 1

    def go_on_after(self, step: int) -> None:
        """The run was resumed after `step`."""
        self._split.go_on_after(step)

    def did(self, first: int, blocks: Mapping[int, Block], clock: Callable[[float], float], *, whole: bool) -> None:
        """Where the time of some consecutive steps went; `clock` gives seconds of running for a time of day.

        If it is not the `whole` of them, because some workers did not report, it only counts in the sums.
        """
        for worker, block in blocks.items():
            member = self._of(worker)
            member.steps += len(block.samples)
            member.timed += len(block.samples)
            member.samples += sum(block.samples)
            for part in PARTS:
                member.time_s[part] += sum(getattr(block, part)) / 1e3
        if not whole:
            return
        if blocks.keys() != self._sharing:
            self._sharing = frozenset(blocks)
            self._split.cut()
        arrived = next(iter(blocks.values())).arrived
        begin, count = 0, len(arrived)
        while begin < count:
            end = min(count, begin + self._split.room())
            row = self._split.row(first + end, clock(arrived[end - 1]), end - begin)
            for worker, block in blocks.items():
                sums = [sum(values[begin:end]) for values in (*(getattr(block, part) for part in PARTS), block.samples)]
                row.sum_up(worker, sums, end - begin)
            begin = end

    def did_unreported(self, missing: Missing) -> None:
        """Steps of which some workers' reports never came."""
        for worker in missing.present | missing.lost:
            member = self._of(worker)
            if worker in missing.present or missing.only:
                member.steps += missing.steps
            else:
                member.at_least = True
            if missing.only:
                member.samples += missing.samples
            else:
                member.samples_at_least = True

    def used(self, worker: int, event: Mapping[str, Any], now: float) -> None:
        """What a worker has used since it was started."""
        member = self._of(worker)
        member.cpu_s = event["cpu_s"]
        member.bytes_sent = event["bytes_sent"]
        member.memory_mb = max(member.memory_mb, event["memory_mb"])
        member.gpu_mb = max(member.gpu_mb, event["gpu_mb"])
        before, cpu_before, sent_before = member.last or (now, event["cpu_s"], event["bytes_sent"])
        passed = now - before
        if member.last is not None and passed < BETWEEN_S:
            return
        member.first = member.first or (now, event["cpu_s"])
        member.last = (now, event["cpu_s"], event["bytes_sent"])
        spent = (passed, event["cpu_s"] - cpu_before, event["bytes_sent"] - sent_before)
        usage = self._usage.setdefault(worker, Thinner(self._usage_rows, sums=True))
        usage.row(0, now).sum_up("", (*spent, event["memory_mb"], event["gpu_mb"]))

    def _of(self, worker: int) -> _Member:
        return self._members.setdefault((self._start, worker), _Member())

    @staticmethod
    def _leave(member: _Member, now: float) -> None:
        if member.since is None:
            return
        member.spans.append((round(member.since, 3), round(max(now, member.since), 3)))
        member.since = None

    # ------------------------------------------------------------- what has come together

    def workers(self) -> tuple[Worker, ...]:
        """Every worker of every start, by start and number."""
        return tuple(self._worker(*key, member) for key, member in sorted(self._members.items()))

    @staticmethod
    def _worker(start: int, number: int, member: _Member) -> Worker:
        there_s = sum(end - begin for begin, end in member.spans)
        (begin, cpu_before), (end, cpu_after, _) = member.first or (0.0, 0.0), member.last or (0.0, 0.0, 0.0)
        return Worker(
            worker=number,
            start=start,
            host=member.host,
            pid=member.pid,
            device=member.device,
            threads=member.threads,
            spans=tuple(member.spans),
            lost=member.lost,
            steps=member.steps,
            timed=member.timed,
            samples=member.samples,
            at_least=member.at_least,
            samples_at_least=member.samples_at_least,
            time_s={part: round(seconds, 4) for part, seconds in member.time_s.items()},
            cpu_s=round(member.cpu_s, 3),
            cpu_cores=round((cpu_after - cpu_before) / (end - begin), 3) if end - begin >= BETWEEN_S else None,
            memory_mb=member.memory_mb,
            gpu_mb=member.gpu_mb,
            bytes_sent=member.bytes_sent,
            hours=round(there_s / 3600, 6),
            cores=member.cores,
        )

    def split(self) -> Split:
        """Where the time went over the course of the run."""
        rows = self._split.rows
        names = (*PARTS, "samples")
        workers: dict[str, dict[str, tuple[float | None, ...]]] = {}
        for worker in sorted({key for row in rows for key in row.cells}):
            cells = [row.cells.get(worker) for row in rows]
            workers[str(worker)] = {
                name: tuple(None if cell is None else cell[place] / cell[0] for cell in cells)
                for place, name in enumerate(names, start=1)
            }
        where = [(row.step, row.seconds, row.redone, row.count) for row in rows]
        step, seconds, redone, count = zip(*where, strict=True) if where else ((), (), (), ())
        return Split(tuple(step), tuple(seconds), tuple(redone), tuple(count), workers)

    def usage(self) -> dict[str, Curve]:
        """What each worker used over the course of the run."""
        return {str(number): _usage(self._usage[number]) for number in sorted(self._usage)}


def _usage(thinner: Thinner) -> Curve:
    rows = thinner.rows
    cells = [row.cells[""] for row in rows]
    return Curve(
        seconds=tuple(row.seconds for row in rows),
        values={
            "cores": tuple(cpu / passed if passed else None for _, passed, cpu, *_ in cells),
            "memory_mb": tuple(memory / count for count, _, _, _, memory, _ in cells),
            "gpu_mb": tuple(gpu / count for count, *_, gpu in cells),
            "sent_mb_s": tuple(sent / passed / MIB if passed else None for _, passed, _, sent, _, _ in cells),
        },
    )
