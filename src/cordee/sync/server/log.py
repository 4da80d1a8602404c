"""What the first holder of a shard has acknowledged, in a file: what its backup gets, the file gets before.

So nothing is lost when both are killed. The file is written through the memory of the system, without waiting for the
disk: it outlives processes, not a loss of power. It begins with all that the server holds, and is begun anew when it
has grown to several times that. Its end may be torn: what stands there was not acknowledged.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from torch import Tensor

from cordee.core.errors import StorageError
from cordee.group.bulk import MOST_HEAD, MOST_PARTS, Gone, bytes_of
from cordee.group.wire import HEADER, length_of, pack, unpack
from cordee.sync.server.messages import Copy, Load, Seal

T = TypeVar("T")
Entry = tuple[Load | Seal | Copy, Sequence[Tensor]]
LEAST = 64 << 20
"""Bytes that the file may have at least before it is begun anew."""
TIMES = 4
"""How many times the size that it began with it may reach."""


class Log:
    """The log of one server; None in the place of a folder writes none."""

    def __init__(self, folder: Path | None, shard: int, content: Callable[[], Iterable[Entry]]) -> None:
        """`content` gives all that the server holds; nothing is written yet."""
        self._path = None if folder is None else folder / f"shard-{shard}.log"
        self._content = content
        self._file: int | None = None
        self._size = self._most = 0

    def remove(self) -> None:
        """The file, also that of a former run: what it holds is of no use any more."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def reading(self) -> Iterator[LogReader]:
        """What a former holder of the shard has written; nothing if there is no file."""
        assert self._path is not None
        with open(self._path if self._path.exists() else os.devnull, "rb") as file:
            yield LogReader(file)

    def append(self, message: Load | Seal | Copy, tensors: Sequence[Tensor]) -> None:
        """Write what is about to be acknowledged."""
        if self._path is None:
            return
        try:
            if self._file is None or self._size > self._most:
                self._begin(self._path)
            self._write((message, tensors))
        except OSError as error:
            raise StorageError(f"the log of a parameter server, {self._path}, cannot be written: {error}") from error

    def _begin(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        making = path.with_suffix(f".{os.getpid()}")
        former, self._file = self._file, os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._size = 0
        for entry in self._content():
            self._write(entry)
        making.replace(path)
        if former is not None:
            os.close(former)
        self._most = max(LEAST, TIMES * self._size)

    def _write(self, entry: Entry) -> None:
        assert self._file is not None
        parts = [memoryview(pack(entry[0])), *bytes_of(entry[1])]
        self._size += sum(map(len, parts))
        while parts:
            written = os.writev(self._file, parts[:MOST_PARTS])
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if written:
                parts[0] = parts[0][written:]


class LogReader:
    """Reads a log as a connection is read: `Gone` at its end."""

    def __init__(self, file: BinaryIO) -> None:
        """From its beginning."""
        self._file = file

    def receive(self, decode: Callable[[bytes], T]) -> T:
        """The next message."""
        try:
            head = self._file.read(HEADER.size)
            return unpack(head, self._file.read(length_of(head, MOST_HEAD)), decode)
        except (OSError, ValueError, RecursionError) as error:
            raise Gone("the end of the log") from error

    def receive_into(self, tensors: Sequence[Tensor]) -> None:
        """The tensors that follow it."""
        for part in bytes_of(tensors):
            if self._file.readinto(part) < len(part):  # type: ignore[attr-defined]
                raise Gone("the end of the log")
