"""The record of a run, `events.jsonl`: one event per line, as JSON."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from cordee.core.damage import writing
from cordee.core.errors import StorageError
from cordee.core.events import ANY_EVENT, Event, encode

parse_event: Callable[[bytes], Event] = msgspec.json.Decoder(ANY_EVENT).decode
"""The event of one line; `ValueError` says what was expected."""
MOST_WHY = 300
"""Characters of what is wrong with a line."""


def append_event(path: str | os.PathLike[str], event: Event) -> None:
    """Append one record to the log of another process: in one piece, as the system appends."""
    with contextlib.suppress(FileNotFoundError), open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb", 0) as file:
        file.write(_line(event))


def _line(event: Event) -> bytes:
    event.time = round(time.time(), 6)
    return encode(event) + b"\n"


class EventLog:
    """Appends events to a file; safe to call from several threads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open `path` at its end, after cutting off a line that a killed writer left unfinished."""
        self.path = Path(path)
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        with writing(self.path):
            # Without a buffer: what the disk refused once is not tried again when the file is closed.
            self._file = self.path.open("ab+", buffering=0)
            if os.fstat(self._file.fileno()).st_size:
                with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    end = content.rfind(b"\n") + 1
                self._file.truncate(end)

    def write(self, event: Event, *, later: bool = False) -> None:
        """Append the record of `event` and hand it to the system, or `later`, with the next one."""
        self._waiting.append(_line(event))
        if not later:
            self.flush()

    def flush(self) -> None:
        """Hand to the system what was to be written later: all of it, or the file stays as it was."""
        with self._lock, writing(self.path):
            lines = b"".join(self._waiting.popleft() for _ in range(len(self._waiting)))
            end = self._file.seek(0, os.SEEK_END)
            written = 0
            try:
                while written < len(lines):
                    written += self._file.write(lines[written:])
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(end)
                raise

    def forget(self) -> None:
        """Drop what was to be written later."""
        with self._lock:
            self._waiting.clear()

    def close(self) -> None:
        """Write what is left and close the file; a second call does nothing."""
        if not self._file.closed:
            self.flush()
        with self._lock:
            self._file.close()


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """The events of `path` in order; a last line that is still being written is left out.

    A line that is no record of an event is a `StorageError` that says what was expected.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                event = parse_event(line)
            except (ValueError, RecursionError) as problem:
                where = f"{Path(path).absolute()} is damaged: line {number} is no record of an event"
                why = str(problem)[:MOST_WHY]  # it may repeat what the line holds, however long that is
                raise StorageError(f"{where} ({why}). Restore the file, or remove it") from None
            yield event


def count_events(path: str | os.PathLike[str], kind: type[Event]) -> int:
    """How many records of a kind a log holds. The log may be long: no line is taken apart."""
    begins = f'{{"event":"{kind.__struct_config__.tag}",'.encode()
    with open(path, "rb") as file:
        return sum(line.startswith(begins) for line in file)
