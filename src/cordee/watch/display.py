"""Where progress is shown: plain lines, a bar on a terminal, or a line that changes in a notebook."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, TextIO

LINE_EVERY_S = 2.0
"""How often a plain line is printed."""
BAR_EVERY_S = 0.1
"""How often a step redraws the bar; between steps it is redrawn for the time that is left."""
CHANGE_EVERY_S = 0.25
CHANGE_SHARE = 0.01
"""How often the line of a notebook changes: in a long run after this share of its time, as notebooks keep it all."""


def display_for(stream: TextIO | None) -> Plain:
    """What suits this stream; None: a notebook if this process is one's kernel, else standard error."""
    if stream is None and in_notebook():
        return Line(sys.stdout)
    chosen = stream or sys.stderr
    return Bar(chosen) if chosen.isatty() else Plain(chosen)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which has loaded IPython; a terminal's IPython is none."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return ask is not None and getattr(ask(), "kernel", None) is not None


def count(done: int, total: int | None) -> str:
    """`step 3 of 30`."""
    return f"step {done} of {total}" if total else f"step {done}"


class Plain:
    """Lines in a file or a pipe, of steps one every few seconds."""

    streams: frozenset[int] = frozenset()
    """Which of a worker's standard streams (1: output, 2: error) have to come through `note` to be shown well."""

    def __init__(self, stream: TextIO) -> None:
        """Nothing is printed yet."""
        self._stream = stream
        self._printed = 0.0

    def say(self, text: str) -> None:
        """Show something of the moment."""
        self.note(text)

    def note(self, text: str) -> None:
        """Show what has to stay in sight, or a line that a worker printed: from any thread."""
        print(text, file=self._stream, flush=True)

    def begin(self, done: int, total: int | None) -> None:
        """So many steps are done, of so many if that is known."""

    def step(self, done: int, total: int | None, loss: str, ms: float) -> None:
        """A step was done; shown unless one was shown a moment ago."""
        if self._is_due(LINE_EVERY_S):
            self.note(f"{count(done, total)}: loss {loss}, {ms:.0f} ms")

    def close(self) -> None:
        """The run is over."""

    def _is_due(self, every_s: float) -> bool:
        now = time.monotonic()
        if now - self._printed < every_s:
            return False
        self._printed = now
        return True


class Bar(Plain):
    """A bar at the foot of a terminal, and everything else above it."""

    def __init__(self, stream: TextIO) -> None:
        """The bar comes with `begin`, or with the first step."""
        super().__init__(stream)
        self.streams = frozenset(number for number in (1, 2) if os.isatty(number))
        self._bar: Any = None
        self._task: Any = None

    def note(self, text: str) -> None:
        """Print it above the bar, in the colours that it asks for, and draw the bar as it is by now."""
        if (bar := self._bar) is None:
            super().note(text)
        else:
            from rich.text import Text

            bar.refresh()
            bar.console.print(Text.from_ansi(text), highlight=False)

    def begin(self, done: int, total: int | None) -> None:
        """Draw the bar."""
        self.close()  # that of a former session of the same script
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        columns = ("step", MofNCompleteColumn(), BarColumn(), "{task.fields[text]}", TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(file=self._stream), refresh_per_second=5)
        self._task = self._bar.add_task("", total=total, completed=done, text="")
        self._bar.start()

    def step(self, done: int, total: int | None, loss: str, ms: float) -> None:
        """Move the bar; a script, which says nothing of its job, has none before."""
        if self._bar is None:
            self.begin(done, total)
        self._bar.update(self._task, completed=done, text=f"loss {loss}")
        if self._is_due(BAR_EVERY_S):
            self._bar.refresh()

    def close(self) -> None:
        """Leave the bar as it is at the end."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Line(Plain):
    """One line that changes, which all frontends of notebooks know by its carriage return; notes stand above it."""

    streams = frozenset((1, 2))

    def __init__(self, stream: TextIO) -> None:
        """Nothing is shown yet."""
        super().__init__(stream)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._text = ""
        self._width = 0

    def say(self, text: str) -> None:
        """Show it in the line."""
        with self._lock:
            self._text = text
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)

    def note(self, text: str) -> None:
        """Print it above the line."""
        with self._lock:
            print("\r" + text.ljust(self._width), file=self._stream)
            self._width = 0
        self.say(self._text)

    def begin(self, done: int, total: int | None) -> None:
        """From now on the line shows steps."""
        self.say(count(done, total))

    def step(self, done: int, total: int | None, loss: str, ms: float) -> None:
        """Show it in the line, unless that was changed a moment ago."""
        self._text = f"{count(done, total)}, loss {loss}"
        if self._is_due(max(CHANGE_EVERY_S, CHANGE_SHARE * (time.monotonic() - self._began))):
            self.say(self._text)

    def close(self) -> None:
        """Leave the line as it is at the end."""
        if self._text:
            self.say(self._text)
            print(file=self._stream, flush=True)
