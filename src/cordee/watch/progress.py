"""Progress of a run, and of a measurement that takes many: on a terminal, in a notebook, or as plain lines."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from cordee.core import events
from cordee.core.plan import Plan
from cordee.core.text import plain
from cordee.core.words import plural
from cordee.watch.display import Bar, display_for
from cordee.watch.words import duration, figure, tell

MOST_NAMED = 8
"""Workers whose processes are named at the start."""


class ProgressView:
    """Shows the events of a run as they come."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """`stream` defaults to standard error, so that output stays clean for scripts; a notebook has its own place."""
        self.display = display_for(stream)
        self._total: int | None = None
        self._processes: dict[int, int] = {}
        self._named = False

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        if show := getattr(self, f"_on_{event.kind}", None):
            show(event)

    def close(self) -> None:
        """The run is over."""
        self.display.close()

    def _say(self, text: str) -> None:
        self.display.say(plain(text))

    def _note(self, text: str) -> None:
        self.display.note(plain(text))

    def _on_start(self, event: events.StartEvent) -> None:
        self._say(f"starting {plural(event.workers, 'worker')}, plan: {event.plan}")

    def _on_plan(self, event: events.PlanEvent) -> None:
        result = "another result than" if event.faithfulness == "statistical" else "the same result as"
        self._say(f"the script's own plan: {Plan.from_dict(event.plan)} ({result} in one process)")

    def _on_job(self, event: events.JobEvent) -> None:
        self._total = event.last_step
        samples = ", ".join(f"{count:,} {part}" for part, count in event.samples.items())
        self._say(f"{event.name}: {event.parameters:,} parameters; samples: {samples}; batch {event.batch}")
        self._name_processes()
        if event.steps:
            is_last = self._total is not None and event.steps >= self._total
            left = ", which was the last: nothing is left" if is_last else ""
            self._say(f"continuing after step {event.steps}{left}")
        self.display.begin(event.steps, self._total)

    def _on_worker(self, event: events.WorkerEvent) -> None:
        if len(self._processes) < MOST_NAMED:
            self._processes[event.worker] = event.pid

    def _name_processes(self) -> None:
        """Once: before the first step, also of a script, which has no job to introduce."""
        if self._processes and not self._named:
            self._named = True
            self._say(
                "processes: " + ", ".join(f"worker {who} is {pid}" for who, pid in sorted(self._processes.items()))
            )

    def _on_step(self, event: events.StepEvent) -> None:
        self._name_processes()
        self.display.step(event.step, self._total, figure(event.loss), event.ms)

    def _on_epoch(self, event: events.EpochEvent) -> None:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in event.validation.items())
        values = f"validation {metrics}" if metrics else f"loss {figure(event.loss)}"
        self._say(f"epoch {event.epoch + 1}: {values}")

    def _on_failure(self, event: events.Event) -> None:
        self._note(tell(event))

    _on_joined = _on_regroup = _on_links = _on_failure

    def _on_warning(self, event: events.WarningEvent) -> None:
        self._note(f"note: {event.message}")


class Rounds:
    """Shows the current run of a measurement and how much time is left: in a bar, or in one line per run."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        """`total` runs; `stream` defaults to standard error, so that output stays clean for scripts."""
        self._total = total
        self._display = display_for(stream or sys.stderr)
        self._began = time.monotonic()
        self._done = 0
        self._text = ""
        self._steps: int | None = None
        self._noted: set[str] = set()
        if isinstance(self._display, Bar):
            self._display.begin(0, total, "run")

    def begin(self, number: int, *, round: int, workers: int) -> None:
        """The run with this number (from 1) starts."""
        self._done = number - 1
        self._text = f"round {round}, {plural(workers, 'worker')}"
        if isinstance(self._display, Bar):
            self._display.move(self._done, self._text)
            return
        seconds = (time.monotonic() - self._began) / max(1, self._done) * (self._total - self._done)
        left = f", about {duration(seconds)} left" if self._done else ""
        self._display.say(f"run {number} of {self._total}: {self._text}{left}")

    def __call__(self, event: events.Event) -> None:
        """An event of the current run."""
        if isinstance(event, events.JobEvent):
            self._steps = event.last_step
        elif isinstance(event, events.StepEvent) and isinstance(self._display, Bar) and self._steps:
            self._display.move(self._done + min(1.0, event.step / self._steps), self._text)
        elif isinstance(event, events.WarningEvent) and event.message not in self._noted:
            self._noted.add(event.message)  # shown once, however many runs have it
            self._display.note(plain(f"note: {event.message}"))

    def close(self) -> None:
        """Nothing more will come."""
        self._display.close()
