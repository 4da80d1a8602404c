"""What workers print, brought to the launcher line by line, which shows it above a bar or in a notebook."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

IDLE_S = 0.3
"""A line without an end is shown after so long without a word; what comes then is another line."""
CLOSE_S = 1.0
"""How long the last words may take: a process that a worker left behind may hold its output for ever."""
MOST = 1 << 16
"""Bytes that are read at once, and of a line that does not end."""


@dataclass(frozen=True)
class Output:
    """Where the output of workers goes."""

    show: Callable[[str], None] = lambda text: None
    """Shows a line; called from a thread of ours."""
    streams: frozenset[int] = frozenset()
    """Which of their standard streams (1, 2) go there; the others are our own, as they are."""


class Relay:
    """One pipe for each worker, so that the lines of several do not mix, and one thread that reads all of them."""

    def __init__(self, output: Output) -> None:
        """Nothing is read before there is a worker whose output goes through here."""
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._parts: dict[int, bytes] = {}
        """Of each pipe what has come of a line, and when."""
        self._heard: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    @contextlib.contextmanager
    def outputs(self) -> Iterator[tuple[int, int]]:
        """Standard output and error for one more worker, which has to get its own copies in here."""
        if not self._output.streams:
            yield 1, 2
            return
        reading, writing = os.pipe()
        self._parts[reading] = b""
        self._selector.register(reading, selectors.EVENT_READ)
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="cordee-relay", daemon=True)
            self._thread.start()
        try:
            out, error = (writing if number in self._output.streams else number for number in (1, 2))
            yield out, error
        finally:
            os.close(writing)

    def close(self) -> None:
        """Show what is left, now that the workers have ended; a second call does nothing."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _read(self) -> None:
        deadline: float | None = None
        while deadline is None or (self._parts and time.monotonic() < deadline):
            for key, _ in self._selector.select(IDLE_S / 10):
                self._take(key.fd)
            for pipe in [pipe for pipe, part in list(self._parts.items()) if part and self._is_idle(pipe)]:
                self._show(self._parts[pipe])
                self._parts[pipe] = b""
            if deadline is None and self._closing.is_set():
                deadline = time.monotonic() + CLOSE_S
        for pipe in list(self._parts):
            self._end(pipe)
        self._selector.close()

    def _is_idle(self, pipe: int) -> bool:
        return time.monotonic() - self._heard[pipe] >= IDLE_S

    def _take(self, pipe: int) -> None:
        data = os.read(pipe, MOST)
        if not data:
            self._end(pipe)
            return
        self._heard[pipe] = time.monotonic()
        *lines, rest = (self._parts[pipe] + data).split(b"\n")
        if len(rest) > MOST:
            lines, rest = [*lines, rest], b""
        for line in lines:
            self._show(line)
        self._parts[pipe] = rest

    def _end(self, pipe: int) -> None:
        if rest := self._parts.pop(pipe):
            self._show(rest)
        self._selector.unregister(pipe)
        os.close(pipe)

    def _show(self, line: bytes) -> None:
        """A line as it would stand on a terminal: a carriage return begins it anew."""
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
        with contextlib.suppress(OSError, ValueError):  # the reader is gone; the run goes on
            self._output.show(text)
