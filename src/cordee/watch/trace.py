"""A run as a trace that Perfetto and other viewers of Chrome's trace format show: all workers on the launcher's clock.

What is exact: when a worker came to a step's collective (`arrived`), how long each part of a step lasted (in the
arguments of the step's slice), when the speaking worker committed a step (counters), and when the launcher heard of a
failure, a new group or a warning. What is laid out: the parts of a step stand in the order callbacks, data, compute,
waiting, communication, with `arrived` before the last two. The update after the collective is counted with compute
and stands before it; collectives inside the passes stand after it. Where a step would overlap the one before by that,
its parts before `arrived` are scaled to fit. Evaluation and saving follow the step that they came after.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

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


ALL_STEPS = range(1, 2**53)


def parse_steps(text: str) -> range:
    """The steps of `A:B`, both included, of `A:` or of `:B`."""
    first, colon, last = text.partition(":")
    try:
        steps = range(int(first or 1), int(last) + 1 if last else ALL_STEPS.stop)
    except ValueError:
        steps = range(0)
    if not colon or not steps or steps.start < 1:
        raise UsageError(f"--steps {text}: expected A:B, the first and the last step, such as 100:200")
    return steps


class _Tracer:
    """Turns the events of a run into those of a trace. Times are in seconds since the beginning."""

    def __init__(self, file: TextIO, origin: float, steps: range) -> None:
        self._file, self._origin, self._steps = file, origin, steps
        self._separator = "\n"
        self._step = 0
        self._after = 0.0
        """When the last step was over."""
        self._ends: dict[int, float] = {}
        """Where the last step of each worker ends."""
        self._breakdown = Breakdown(self._on_block)
        self._name(RUN, "run", "what happened", "evaluation and saving")

    def take(self, event: Event) -> None:
        """One event of the run."""
        if take := getattr(self, f"_on_{event.kind}", None):
            take(event)
        self._breakdown.take(event)
        if (text := tell(event)) and self._shown():
            self._instant(event.kind, event.moment, text)

    def close(self) -> None:
        """Write the steps whose reports are not complete."""
        self._breakdown.finish()

    # ------------------------------------------------------------- what is written

    def _write(self, process: int, thread: int, kind: str, name: str, **more: Any) -> None:
        event = {"ph": kind, "name": name, "pid": process, "tid": thread, **more}
        self._file.write(self._separator + json.dumps(event, allow_nan=False, separators=(",", ":")))
        self._separator = ",\n"

    def _name(self, process: int, name: str, *threads: str) -> None:
        self._write(process, 0, "M", "process_name", args={"name": name})
        self._write(process, 0, "M", "process_sort_index", args={"sort_index": process})
        for number, thread in enumerate(threads):
            self._write(process, number, "M", "thread_name", args={"name": thread})

    def _slice(self, process: int, thread: int, name: str, begin: float, length: float, **arguments: Any) -> None:
        self._write(process, thread, "X", name, ts=_micro(begin), dur=_micro(max(0.0, length)), args=arguments)

    def _instant(self, name: str, moment: float, text: str) -> None:
        self._write(RUN, HAPPENED, "i", name, s="g", ts=_micro(self._since(moment)), args={"text": text})

    def _since(self, moment: float) -> float:
        """A time of day in seconds since the beginning; stamps are microseconds, which large numbers do not hold."""
        return max(0.0, round(moment - self._origin, 6))

    def _shown(self) -> bool:
        """Whether what happens now happens among the steps that are shown."""
        return self._steps.start - 1 <= self._step < self._steps.stop

    # ------------------------------------------------------------- what happens

    def _on_start(self, event: StartEvent) -> None:
        self.close()
        self._after = self._since(event.time)
        if self._shown():
            self._instant("resume" if event.resume else "start", event.time, f"plan {event.plan}")

    def _on_job(self, event: JobEvent) -> None:
        self._step = event.steps

    def _on_worker(self, event: WorkerEvent) -> None:
        self._name(event.worker + 1, f"worker {event.worker} ({event.host}, {event.device})", "steps")

    def _on_step(self, event: StepEvent) -> None:
        self._step, self._after = event.step, self._since(event.moment)
        speed = round(1e3 * event.samples / event.ms, 2) if event.ms else None
        for name, value in (("loss", event.loss), ("samples/s", speed)):
            if value is not None and event.step in self._steps:
                self._write(RUN, HAPPENED, "C", name, ts=_micro(self._after), args={name: value})

    def _on_epoch(self, event: EpochEvent) -> None:
        if event.step in self._steps:
            values = {f"validation {name}": value for name, value in event.validation.items()}
            self._instant("epoch", event.time, f"epoch {event.epoch + 1}")
            name = f"evaluation after epoch {event.epoch + 1}"
            self._slice(RUN, BETWEEN, name, self._after, event.ms / 1e3, **values)

    def _on_checkpoint(self, event: CheckpointEvent) -> None:
        if event.step in self._steps:
            self._instant("checkpoint", event.time, f"step {event.step}")
            self._slice(RUN, BETWEEN, "saving", self._since(event.moment), event.ms / 1e3, step=event.step)

    def _on_block(self, first: int, blocks: Mapping[int, Block]) -> None:
        for worker, block in blocks.items():
            for place, arrived in enumerate(block.arrived):
                if (step := first + place + 1) in self._steps:
                    parts = {part: getattr(block, part)[place] / 1e3 for part in PARTS}
                    self._add_step(worker, step, block.samples[place], self._since(arrived), parts)

    def _add_step(self, worker: int, step: int, samples: int, arrived: float, parts: Mapping[str, float]) -> None:
        own, blocked = (sum(parts[name] for name in names) for names in (OWN, BLOCKED))
        begin = max(arrived - own, self._ends.get(worker, 0.0))
        arrived = max(arrived, begin)
        scale = (arrived - begin) / own if own else 0.0
        self._ends[worker] = end = arrived + blocked
        exact = {part: round(1e3 * parts[part], 4) for part in PARTS}
        self._slice(worker + 1, 0, f"step {step}", begin, end - begin, samples=samples, exact_ms=exact)
        at = begin
        for name in (*OWN, *BLOCKED):
            length = parts[name] * (scale if name in OWN else 1.0)
            if length > 0:
                self._slice(worker + 1, 0, name, at, length)
            at += length


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def write_trace(folder: str | os.PathLike[str], path: str | os.PathLike[str], steps: range = ALL_STEPS) -> None:
    """Write the trace of the run in `folder` to `path`, as far as it has come."""
    events = read_events(Path(folder) / "events.jsonl")
    first = next(events, None)
    target = Path(path)
    with damage.writing(target), target.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        tracer = _Tracer(file, first.time if first else 0.0, steps)
        for event in itertools.chain([first] if first else [], events):
            tracer.take(event)
        tracer.close()
        file.write("\n]}\n")
