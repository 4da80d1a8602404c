"""Progress of a run, and of a measurement that takes many."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from cordee.core import events
from cordee.core.plan import Plan
from cordee.core.text import plain
from cordee.core.words import plural
from cordee.watch.display import display_for
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
        self._note(f"epoch {event.epoch + 1}: {values}")

    def _on_failure(self, event: events.Event) -> None:
        self._note(tell(event))

    _on_joined = _on_stranger = _on_regroup = _on_links = _on_cut = _on_shares = _on_shard = _on_straggler = _on_failure

    _on_continued = _on_failure

    def _on_server(self, event: events.Event) -> None:
        if text := tell(event):  # not the roles at the start, nor a decision that changes nothing
            self._note(text)

    _on_decision = _on_server

    def _on_warning(self, event: events.WarningEvent) -> None:
        self._note(f"note: {event.message}")


class Rounds:
    """Says which run of a measurement is current and how much time is left, a line per run, on standard error."""

    def __init__(self, total: int) -> None:
        """`total` runs."""
        self._total = total
        self._began = time.monotonic()
        self._noted: set[str] = set()

    def begin(self, number: int, *, round: int, workers: int) -> None:
        """The run with this number (from 1) starts."""
        done = number - 1
        seconds = (time.monotonic() - self._began) / max(1, done) * (self._total - done)
        left = f", about {duration(seconds)} left" if done else ""
        _print(f"run {number} of {self._total}: round {round}, {plural(workers, 'worker')}{left}")

    def __call__(self, event: events.Event) -> None:
        """Of what happens in a run only warnings are shown, each once however many runs have it."""
        if isinstance(event, events.WarningEvent) and event.message not in self._noted:
            self._noted.add(event.message)
            _print(f"note: {event.message}")

    def close(self) -> None:
        """Nothing is open."""


def _print(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)  # noqa: T201
