"""`report.html` in a run's folder: written when a run ends, and again by `cordee report`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from cordee.core import damage
from cordee.core.events import Event, Listener, StartEvent, StepEvent
from cordee.core.text import plain
from cordee.core.words import plural
from cordee.watch.summary import Summary
from cordee.watch.words import figure

NAME = "report.html"


def write_report(folder: str | os.PathLike[str], summary: Summary | None = None, now: float | None = None) -> Path:
    """Write the report of the run in `folder`, all of it or nothing, as far as the run has come; returns its path."""
    from cordee.watch.page import render
    from cordee.watch.summarise import damaged_run, summarise

    path, now = Path(folder) / NAME, now or time.time()
    with damage.named(damaged_run(Path(folder))):
        page = render(summary or summarise(folder, now), now)
    with damage.writing(path):
        damage.write_whole(path, page)
    return path


class Reported:
    """Listens to a run, passes everything on, and writes its report whatever way it ends, if this process records it.

    Of a run that failed nothing is shown but its error: `tell` where its report is, if there was a step.
    """

    def __init__(self, folder: Path, listen: Listener, *, tell: bool = True) -> None:
        """Nothing has been heard."""
        self._folder, self._listen, self._tell = folder, listen, tell
        self._is_begun = False
        self._began = time.monotonic()
        self._steps = 0
        """Of this start."""
        self._last: StepEvent | None = None
        self.path: Path | None = None
        """The report, once it is written."""

    def __enter__(self) -> Reported:
        return self

    def __call__(self, event: Event) -> None:
        """One event of the run."""
        if isinstance(event, StartEvent):  # the time in which hosts wait for each other does not count
            self._is_begun, self._began = True, time.monotonic()
        if isinstance(event, StepEvent):
            self._steps += 1
            self._last = event
        self._listen(event)

    def reached(self) -> str:
        """How far the run came, in a line; empty if there was no step."""
        if self._last is None:
            return ""
        whole = f" (of {self._last.step} in all)" if self._last.step > self._steps else ""
        seconds = time.monotonic() - self._began
        return f"{plural(self._steps, 'step')}{whole}, last loss {figure(self._last.loss)}, {seconds:.1f} s"

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if not self._is_begun:
            return  # refused before it began, or a host or rank that only follows
        try:
            self.path = write_report(self._folder)
            if kind is not None and self._steps and self._tell:
                print(plain(f"report: {self.path}"), file=sys.stderr)  # noqa: T201
        except Exception as error:  # the run has its own end, which nothing here may hide
            note = f"note: the report could not be written ({type(error).__name__}: {error})"
            print(plain(note), file=sys.stderr)  # noqa: T201
