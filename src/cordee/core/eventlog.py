"""The record of a run, `events.jsonl`: one event per line, as JSON."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from cordee.core.errors import StorageError
from cordee.core.events import ANY_EVENT, EVENTS, Event, encode


def append_event(path: str | os.PathLike[str], event: Event) -> None:
    """Append one record to the log of another process: in one piece, as the system appends."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, _line(event))
        finally:
            os.close(handle)


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
        try:
            # Without a buffer: what the disk refused once is not tried again when the file is closed.
            self._file = self.path.open("ab+", buffering=0)
            _cut_torn_line(self._file)
        except OSError as error:
            raise self._storage_error(error) from None

    def write(self, event: Event, *, later: bool = False) -> None:
        """Append the record of `event` and hand it to the system, or `later`, with the next one."""
        self._waiting.append(_line(event))
        if not later:
            self.flush()

    def flush(self) -> None:
        """Hand to the system what was to be written later."""
        with self._lock:
            lines = b"".join(self._waiting.popleft() for _ in range(len(self._waiting)))
            try:
                self._append(lines)
            except OSError as error:
                raise self._storage_error(error) from None

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

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        """Write the whole line, or leave the file as it was."""
        end = self._file.seek(0, os.SEEK_END)
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise

    def _storage_error(self, error: OSError) -> StorageError:
        """The error for a log that cannot be written."""
        return StorageError(
            f"{self.path.absolute()} could not be written: {error.strerror}. Free or choose another disk."
        )


class _Head(msgspec.Struct):
    """What every record has, of whatever version."""

    event: str
    time: float


_decode: Callable[[bytes], Event] = msgspec.json.Decoder(ANY_EVENT).decode
_decode_head = msgspec.json.Decoder(_Head).decode


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """The events of `path` in order; kinds of other versions and a last line that is still being written are left out.

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
                raise StorageError(f"{where} ({problem}). Restore the file, or remove it") from None
            if event is not None:
                yield event


def parse_event(line: bytes) -> Event | None:
    """The event of one line, None for a kind of another version; `ValueError` says what was expected."""
    try:
        event = _decode(line)
    except msgspec.ValidationError:
        if _decode_head(line).event not in EVENTS:
            return None
        raise
    if not event.time:
        _decode_head(line)  # refuses a record without one
    return event


def count_events(path: str | os.PathLike[str], kind: type[Event]) -> int:
    """How many records of a kind a log holds; 0 if there is none. The log may be long: no line is taken apart."""
    begins = f'{{"event":"{kind.__struct_config__.tag}",'.encode()
    try:
        with open(path, "rb") as file:
            return sum(line.startswith(begins) for line in file)
    except FileNotFoundError:
        return 0


def _cut_torn_line(file: io.FileIO) -> None:
    """Cut `file` after its last newline, reading backwards in blocks."""
    end = file.seek(0, os.SEEK_END)
    keep = end
    while keep > 0:
        start = max(0, keep - 4096)
        file.seek(start)
        newline = file.read(keep - start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep < end:
        file.truncate(keep)
