"""What a worker writes into the run's folder in a place that does not see it: brought to the first host as it appears.

Checkpoints and the trained model, by what `cordee data send` is made of: with the run's token and TLS, and only what
the first host lacks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from cordee.core.errors import CordeeError
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.receiver import LOCK, Receiver
from cordee.feed.exchange.send import send

LOOK_S = 2.0
"""How often a place looks whether there is something new."""
TRIES = 3
"""How often it tries at the end."""
LONG_S = 600.0
"""The longest that the first host waits for what still comes at the end."""


class Results:
    """On the first host: takes what the places bring, into the run's folder."""

    def __init__(self, out: Path, host: str, token: str) -> None:
        """Listen at a port that the system chooses."""
        self._out = out
        self._receiver = Receiver(out, f"{host}:0", Access(token))
        self.place = self._receiver.place

    def settle(self) -> None:
        """Wait until all that is being brought has come."""
        deadline = time.monotonic() + LONG_S
        while self._receiver.busy and time.monotonic() < deadline:
            self._receiver.wait(deadline_s=LOOK_S)

    def close(self) -> None:
        """Take no more."""
        self._receiver.close()
        (self._out / LOCK).unlink(missing_ok=True)


@contextlib.contextmanager
def brought(folder: Path, place: str, token: str) -> Iterator[None]:
    """In a place: whatever appears in this folder meanwhile is brought to the first host, and at the end all of it."""
    over = threading.Event()
    thread = threading.Thread(target=_bring, args=(folder, place, token, over), name="cordee-results", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LONG_S)


def _bring(folder: Path, place: str, token: str, over: threading.Event) -> None:
    there: dict[str, tuple[int, int]] = {}
    failed = 0
    while True:
        last = over.wait(LOOK_S)
        found = _listing(folder, whole=not last)
        if found and found != there:
            complete = False
            with contextlib.suppress(CordeeError, OSError):  # a file went while it was read: the next look sees that
                complete = send(folder, [place], how="broadcast", access=Access(token), name="").complete
            there, failed = (found, 0) if complete else (there, failed + 1)
        else:
            failed = 0
        if last and (not failed or failed >= TRIES):
            return


def _listing(folder: Path, *, whole: bool) -> dict[str, tuple[int, int]]:
    """The files, each with size and time of its last change. If they have to be `whole`: nothing while one is made."""
    found = {}
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            if whole and path.name.startswith("."):
                return {}
            if path.is_file():
                status = path.stat()
                found[str(path)] = status.st_size, status.st_mtime_ns
    return found
