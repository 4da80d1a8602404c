"""What workers print, brought to the launcher line by line, which shows it above a bar or in a notebook."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

CLOSE_S = 1.0
"""How long the last words may take: a process that a worker left behind may hold its output for ever."""
MOST = 1 << 16
"""Bytes of a line that does not end."""


@dataclass(frozen=True)
class Output:
    """Where the output of workers goes."""

    show: Callable[[str], None] = lambda text: None
    """Shows a line; called from a thread of ours."""
    streams: frozenset[int] = frozenset()
    """Which of their standard streams (1, 2) go there; the others are our own, as they are."""


class Relay:
    """One pipe and one thread that reads it for each worker, so that the lines of several do not mix."""

    def __init__(self, output: Output) -> None:
        """Nothing is read before there is a worker whose output goes through here."""
        self._output = output
        self._threads: list[threading.Thread] = []
        self._showing = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def outputs(self) -> Iterator[tuple[int, int]]:
        """Standard output and error for one more worker, which has to get its own copies in here."""
        if not self._output.streams:
            yield 1, 2
            return
        reading, writing = os.pipe()
        self._threads.append(threading.Thread(target=self._read, args=(reading,), name="cordee-relay", daemon=True))
        self._threads[-1].start()
        try:
            out, error = (writing if number in self._output.streams else number for number in (1, 2))
            yield out, error
        finally:
            os.close(writing)

    def close(self) -> None:
        """Show what is left, now that the workers have ended; a second call does nothing."""
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._closed = True

    def _read(self, pipe: int) -> None:
        with open(pipe, "rb") as file:
            while not self._closed and (line := file.readline(MOST)):
                # As it would stand on a terminal, where a carriage return begins it anew.
                text = line.rstrip(b"\r\n").rpartition(b"\r")[2].decode(errors="replace")
                with self._showing, contextlib.suppress(OSError, ValueError):  # the reader is gone; the run goes on
                    self._output.show(text)
