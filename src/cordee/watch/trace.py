"""A run as a trace that Perfetto and other viewers of Chrome's trace format show: all workers on the launcher's clock.

What is exact: when a worker came to a step's collective (`arrived`), how long each part of a step lasted (in the
arguments of the step's slice), when the speaking worker committed a step (counters), and when the launcher heard of a
failure, a new group or a warning. What is laid out: the parts of a step stand in the order callbacks, data, compute,
waiting, communication, with `arrived` before the last two. The update after the collective is counted with compute
and stands before it; collectives inside the passes stand after it. Where two steps would overlap by that, the slices
between their two arrivals are scaled to fit. Evaluation and saving follow the step that they came after.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from cordee.core import damage
from cordee.core.errors import UsageError
from cordee.core.eventlog import read_events
from cordee.core.events import CheckpointEvent, EpochEvent, Event, JobEvent, StartEvent, StepEvent, WorkerEvent
from cordee.core.times import PARTS, Block, Breakdown
from cordee.watch.words import tell

RUN = 0
"""The process of the trace that stands for the run; worker n is process n + 1."""
HAPPENED, BETWEEN = 0, 1
"""Its threads: what happened, and what was done between steps."""
OWN, BLOCKED = ("callbacks", "data", "compute"), ("waiting", "communication")
"""The parts of a step before and after a worker comes to the collective, in the order in which they are laid out."""


@dataclass(frozen=True)
class StepRange:
    """Which steps to show, both ends included."""

    first: int = 1
    last: float = float("inf")

    @classmethod
    def parse(cls, text: str | None) -> StepRange:
        """From `A:B`, `A:` or `:B`."""
        if text is None:
            return cls()
        first, colon, last = text.partition(":")
        try:
            steps = cls(int(first) if first else 1, int(last) if last else float("inf"))
            if not colon or steps.first < 1 or steps.last < steps.first:
                raise ValueError
        except ValueError:
            raise UsageError(f"--steps {text}: expected A:B, the first and the last step, such as 100:200") from None
        return steps

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last


class Stamp(NamedTuple):
    """One step on one worker, in seconds since the beginning."""

    step: int
    samples: int
    arrived: float
    parts: Mapping[str, float]

    @property
    def own(self) -> float:
        """What the worker spends before it comes to the collective."""
        return sum(self.parts[name] for name in OWN)

    @property
    def blocked(self) -> float:
        """What it spends in it."""
        return sum(self.parts[name] for name in BLOCKED)


def border(one: Stamp, following: Stamp) -> tuple[float, float]:
    """Where a step ends and where the next one, which arrives no earlier, begins, so that they do not overlap."""
    end, begin = one.arrived + one.blocked, following.arrived - following.own
    if end <= begin:
        return end, begin
    cut = one.arrived + (following.arrived - one.arrived) * one.blocked / (one.blocked + following.own)
    return cut, cut


def lay_out(one: Stamp, begin: float, end: float) -> list[tuple[str, float, float]]:
    """The parts of a step between `begin` and `end`: name, begin and length of each that has one."""
    before = max(0.0, one.arrived - begin) / one.own if one.own else 0.0
    after = max(0.0, end - one.arrived) / one.blocked if one.blocked else 0.0
    lengths = {name: one.parts[name] * (before if name in OWN else after) for name in (*OWN, *BLOCKED)}
    begins = itertools.accumulate(lengths.values(), initial=begin)
    return [(name, at, length) for (name, length), at in zip(lengths.items(), begins, strict=False) if length > 0]


class _Writer:
    """Writes trace events one after the other; on a track no time is before the one before. Times are in seconds."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._separator = "\n"
        self._latest: dict[tuple[int, int], float] = {}

    def slice(self, track: tuple[int, int], name: str, begin: float, length: float, **arguments: Any) -> None:
        self._put(track, begin, ph="X", name=name, dur=_micro(max(0.0, length)), args=arguments)

    def instant(self, name: str, at: float, text: str) -> None:
        self._put((RUN, HAPPENED), at, ph="i", s="g", name=name, args={"text": text})

    def counter(self, name: str, at: float, value: float) -> None:
        self._put((RUN, -1), at, ph="C", name=name, args={name: value})

    def name(self, process: int, name: str, *threads: str) -> None:
        """Name a process and its threads."""
        self._event(process, 0, ph="M", name="process_name", args={"name": name})
        self._event(process, 0, ph="M", name="process_sort_index", args={"sort_index": process})
        for number, thread in enumerate(threads):
            self._event(process, number, ph="M", name="thread_name", args={"name": thread})

    def _put(self, track: tuple[int, int], at: float, **event: Any) -> None:
        self._latest[track] = max(_micro(at), self._latest.get(track, 0.0))
        self._event(track[0], max(0, track[1]), ts=self._latest[track], **event)

    def _event(self, process: int, thread: int, **event: Any) -> None:
        event |= {"pid": process, "tid": thread}
        self._file.write(self._separator + json.dumps(event, allow_nan=False, separators=(",", ":")))
        self._separator = ",\n"


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)


class _Tracer:
    """Turns the events of a run into those of a trace."""

    def __init__(self, file: TextIO, origin: float, steps: StepRange) -> None:
        self._out = _Writer(file)
        self._origin = origin
        self._steps = steps
        self._step = 0
        self._after = 0.0
        """When the last step was over."""
        self._starts = 0
        self._open: dict[int, tuple[Stamp, float]] = {}
        """The last step of each worker, and where it begins: it is written when it is known where it must end."""
        self._breakdown = Breakdown(self._on_block)
        self._out.name(RUN, "run", "what happened", "evaluation and saving")

    def take(self, event: Event) -> None:
        """One event of the run."""
        take = getattr(self, f"_on_{event.kind}", None)
        if take is not None:
            take(event)
        self._breakdown.take(event)
        if (text := tell(event)) and self._shown():
            self._out.instant(event.kind, self._since(event.moment), text)

    def close(self) -> None:
        """Write what waited for what came after it."""
        self._breakdown.finish()
        for worker, (stamp, begin) in self._open.items():
            self._step_slices(worker, stamp, begin, stamp.arrived + stamp.blocked)
        self._open.clear()

    def _since(self, moment: float) -> float:
        """A time of day in seconds since the beginning; stamps are microseconds, which large numbers do not hold."""
        return max(0.0, round(moment - self._origin, 6))

    def _shown(self) -> bool:
        """Whether what happens now happens among the steps that are shown."""
        return self._steps.first - 1 <= self._step <= self._steps.last

    def _on_start(self, event: StartEvent) -> None:
        self.close()
        self._starts += 1
        self._after = self._since(event.time)
        if self._shown():
            self._out.instant("resume" if self._starts > 1 else "start", self._after, f"plan {event.plan}")

    def _on_job(self, event: JobEvent) -> None:
        self._step = event.steps

    def _on_worker(self, event: WorkerEvent) -> None:
        self._out.name(event.worker + 1, f"worker {event.worker} ({event.host}, {event.device})", "steps")

    def _on_step(self, event: StepEvent) -> None:
        self._step, at = event.step, self._since(event.moment)
        self._after = at
        if self._step in self._steps:
            if event.loss is not None:
                self._out.counter("loss", at, event.loss)
            if event.ms:
                self._out.counter("samples/s", at, round(1e3 * event.samples / event.ms, 2))

    def _on_epoch(self, event: EpochEvent) -> None:
        if event.step in self._steps:
            values = {f"validation {name}": value for name, value in event.validation.items()}
            self._out.instant("epoch", self._since(event.time), f"epoch {event.epoch + 1}")
            name = f"evaluation after epoch {event.epoch + 1}"
            self._out.slice((RUN, BETWEEN), name, self._after, event.ms / 1e3, **values)

    def _on_checkpoint(self, event: CheckpointEvent) -> None:
        if event.step in self._steps:
            self._out.instant("checkpoint", self._since(event.time), f"step {event.step}")
            began = self._since(event.moment)
            self._out.slice((RUN, BETWEEN), "saving", began, event.ms / 1e3, step=event.step)

    def _on_block(self, first: int, blocks: Mapping[int, Block]) -> None:
        for worker, one in blocks.items():
            for place, (samples, arrived) in enumerate(zip(one.samples, one.arrived, strict=False)):
                if (step := first + place + 1) in self._steps:
                    parts = {part: getattr(one, part)[place] / 1e3 for part in PARTS}
                    self._add(worker, Stamp(step, samples, self._since(arrived), parts))

    def _add(self, worker: int, stamp: Stamp) -> None:
        begin = max(0.0, stamp.arrived - stamp.own)
        if worker in self._open:
            last, its_begin = self._open[worker]
            if stamp.arrived < last.arrived:  # a clock was set back
                stamp = stamp._replace(arrived=last.arrived)
            end, begin = border(last, stamp)
            self._step_slices(worker, last, its_begin, end)
        self._open[worker] = (stamp, begin)

    def _step_slices(self, worker: int, one: Stamp, begin: float, end: float) -> None:
        track = (worker + 1, 0)
        exact = {part: round(1e3 * one.parts[part], 4) for part in PARTS}
        self._out.slice(track, f"step {one.step}", begin, end - begin, samples=one.samples, exact_ms=exact)
        for name, at, length in lay_out(one, begin, end):
            self._out.slice(track, name, at, min(length, end - at))


def write_trace(folder: str | os.PathLike[str], path: str | os.PathLike[str], steps: StepRange | None = None) -> None:
    """Write the trace of the run in `folder` to `path`, as far as it has come."""
    record = Path(folder) / "events.jsonl"
    events = read_events(record)
    first = next(events, None)
    target = Path(path)
    with damage.writing(target), target.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        tracer = _Tracer(file, first.time if first else 0.0, steps or StepRange())
        for event in itertools.chain([first] if first else [], events):
            tracer.take(event)
        tracer.close()
        file.write("\n]}\n")
