"""Notices that code of the user's reads for too long: it runs in the caller's thread, which nothing can interrupt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

EARLIER = 0.9
"""The part of the deadline after which a read is overdue: peers that wait for this worker are about to give up too."""


class Overdue:
    """Reads happen `with` it; calls `late` once, from a thread of its own, if one of them takes too long."""

    def __init__(self, deadline_s: float, late: Callable[[], None]) -> None:
        """Watch nothing yet; the thread begins with the first read."""
        self._limit_s, self._late = EARLIER * deadline_s, late
        self._since: float | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        """A read begins."""
        self._since = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="cordee-overdue", daemon=True)
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        """It is over."""
        self._since = None

    def close(self) -> None:
        """No read follows."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._limit_s / 4)):
            since = self._since
            if since is not None and time.monotonic() - since > self._limit_s:
                self._late()
                return
