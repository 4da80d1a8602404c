"""Progress of a measurement that takes many runs: a bar over all of them, or one plain line per run."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from cordee.core.text import plain
from cordee.core.words import plural
from cordee.watch.display import start_bar


class Rounds:
    """Shows which run of how many goes on, and how much time is left."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        """`total` runs; `stream` defaults to standard error, so that output stays clean for scripts."""
        self._total = total
        self._stream = stream or sys.stderr
        self._began = time.monotonic()
        self._done = 0
        self._steps: int | None = None
        self._noted: set[str] = set()
        self._bar: Any = None
        if self._stream.isatty():
            from rich.progress import BarColumn

            self._bar = start_bar(self._stream, BarColumn(), "{task.fields[run]}", transient=True)
            self._task = self._bar.add_task("runs", total=total, run="starting")

    def begin(self, number: int, *, round: int, workers: int) -> None:
        """The run with this number (from 1) starts."""
        self._done = number - 1
        text = f"run {number} of {self._total}: round {round}, {plural(workers, 'worker')}{self._left()}"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, run=text)
        else:
            self._say(text)

    def __call__(self, event: dict[str, Any]) -> None:
        """An event of the run that goes on."""
        if event["event"] == "job":
            self._steps = event["last_step"]
        elif event["event"] == "step" and self._bar is not None and self._steps:
            self._bar.update(self._task, completed=self._done + min(1.0, event["step"] / self._steps))

    def note(self, message: str) -> None:
        """Something to know, said once however many runs say it."""
        if message not in self._noted:
            self._noted.add(message)
            self._say(f"note: {message}")

    def close(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _left(self) -> str:
        """What is left, judged by the runs so far."""
        if not self._done:
            return ""
        seconds = (time.monotonic() - self._began) / self._done * (self._total - self._done)
        return f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"

    def _say(self, text: str) -> None:
        text = plain(text)
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=self._stream, flush=True)
