"""Files that come from another host, on their way to the local disk: never outside their folder, never half of one.

A file has another name until its last byte is there and its checksum agrees. Bytes that are there may be read, to be
passed on, while others still come.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cordee.feed.exchange.listing import BLOCK, MANIFEST, PART, Checksum, Entry

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Stopped(Exception):
    """The rest will not come; the text says why."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        """`final`: no other host has it in our place."""
        super().__init__(reason)
        self.final = final


class Landing:
    """Files of one list below one folder; one thread writes, others may read what is there."""

    def __init__(self, folder: Path, name: str, entries: Sequence[Entry]) -> None:
        """They lie in `folder / name`, or in `folder` itself without a name. `entries` were checked."""
        self.entries = entries
        self.sizes = [0] * len(entries)
        """How much of each file is there."""
        self.whole = [False] * len(entries)
        self._base = [*([name] if name else [])]
        self._root = folder
        self._changed = threading.Condition()
        self._stopped: Stopped | None = None
        self._parts = {_part(entry) for entry in entries}
        self._writing: tuple[int, int, Checksum] | None = None
        """The file that is written: its number, descriptor and checksum so far."""

    # ------------------------------------------------------------- before the first byte

    def survey(self, beat: Callable[[], None]) -> int:
        """Find out what is there already; its bytes. `beat` is called now and then. `OSError` if there is no room."""
        had, cleaned = 0, set()
        # A store is whole as long as it has a manifest: that is looked at when all others are known.
        for number in sorted(range(len(self.entries)), key=lambda one: self.entries[one].path == MANIFEST):
            where = self.entries[number].path.rpartition("/")[0]
            with self._folder(number) as folder:
                if where not in cleaned:
                    cleaned.add(where)
                    self._clean(folder)
                had += self._look(number, folder, beat)
            beat()
        missing = sum(entry.size for entry in self.entries) - had
        room = os.statvfs(self._root)
        if missing > (free := room.f_bavail * room.f_frsize):
            raise OSError(f"the disk has no room: {missing:,} bytes are to come, {free:,} are free")
        return had

    def _clean(self, folder: int) -> None:
        """Remove what is left of older versions."""
        for found in os.listdir(folder):
            if found.startswith(PART) and found not in self._parts:
                os.unlink(found, dir_fd=folder)

    def _look(self, number: int, folder: int, beat: Callable[[], None]) -> int:
        """How much of a file is there."""
        entry = self.entries[number]
        name, part = entry.path.rpartition("/")[2], _part(entry)
        if entry.path == MANIFEST and sum(self.whole) < len(self.entries) - 1:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        if self._checked(folder, name, entry, beat):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)
            self._set(number, entry.size, whole=True)
            return entry.size
        try:
            size = os.stat(part, dir_fd=folder, follow_symlinks=False).st_size
        except FileNotFoundError:
            size = 0
        if size >= entry.size > 0:  # all of it came, but the process ended before it was looked at
            if self._checked(folder, part, entry, beat):
                os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
                self._set(number, entry.size, whole=True)
                return entry.size
            os.unlink(part, dir_fd=folder)
            size = 0
        self._set(number, size, whole=False)
        return size

    @staticmethod
    def _checked(folder: int, name: str, entry: Entry, beat: Callable[[], None]) -> bool:
        """Whether a file is there, with the right bytes."""
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
            return False
        check = Checksum(entry.check)
        with open(_open(folder, name, os.O_RDONLY), "rb") as file:
            while block := file.read(BLOCK):
                check.add(block)
                beat()
        return check.agrees

    # ------------------------------------------------------------- as bytes come

    def write(self, number: int, offset: int, data: memoryview) -> None:
        """The next bytes of a file; `ValueError` for others, and if the whole is not what it has to be."""
        entry = self.entries[number]
        if self.whole[number] or offset != self.sizes[number] or offset + len(data) > entry.size:
            raise ValueError(
                f"bytes {offset} to {offset + len(data)} of {entry.path!r} came, which has {entry.size}, and of which "
                f"{self.sizes[number]} are here"
            )
        if self._writing is None or self._writing[0] != number:
            self._begin(number)
        assert self._writing is not None
        _, handle, check = self._writing
        check.add(data)
        done = 0
        while done < len(data):
            done += os.pwrite(handle, data[done:], offset + done)
        if offset + done == entry.size:
            self._end(number)
        else:
            self._set(number, offset + done, whole=False)

    def finish_empty(self) -> None:
        """Make the files that have no bytes."""
        for number, entry in enumerate(self.entries):
            if entry.size == 0 and not self.whole[number]:
                self._begin(number)
                self._end(number)

    def _begin(self, number: int) -> None:
        self._leave()
        entry = self.entries[number]
        check = Checksum(entry.check)
        with self._folder(number) as folder:
            handle = _open(folder, _part(entry), os.O_RDWR | os.O_CREAT)
        size = self.sizes[number]
        os.ftruncate(handle, size)
        for offset in range(0, size, BLOCK):
            check.add(os.pread(handle, min(BLOCK, size - offset), offset))
        self._writing = number, handle, check

    def _end(self, number: int) -> None:
        assert self._writing is not None
        entry, agrees = self.entries[number], self._writing[2].agrees
        self._leave()
        name = entry.path.rpartition("/")[2]
        with self._folder(number) as folder:
            if not agrees:
                os.unlink(_part(entry), dir_fd=folder)
                self._set(number, 0, whole=False)
                raise ValueError(f"{entry.path!r} came, but its checksum is another: send it again")
            with self._changed:  # a reader opens it by one name or the other
                os.rename(_part(entry), name, src_dir_fd=folder, dst_dir_fd=folder)
                self.sizes[number], self.whole[number] = entry.size, True
                self._changed.notify_all()

    def _leave(self) -> None:
        if self._writing is not None:
            os.close(self._writing[1])
            self._writing = None

    def _set(self, number: int, size: int, *, whole: bool) -> None:
        with self._changed:
            self.sizes[number], self.whole[number] = size, whole
            self._changed.notify_all()

    # ------------------------------------------------------------- for those who pass it on

    def available(self, number: int, offset: int, wait_s: float) -> int:
        """How far a file is there, beyond `offset`, waiting at most so long; `Stopped` if the rest will not come."""
        with self._changed:
            if self.sizes[number] <= offset and self._stopped is None:
                self._changed.wait(wait_s)
            size = self.sizes[number]
            if size <= offset and not self.whole[number] and self._stopped is not None:
                raise self._stopped
            return size

    def open(self, number: int) -> int:
        """A file of which something is there, for reading."""
        entry = self.entries[number]
        with self._changed, self._folder(number) as folder:
            name = entry.path.rpartition("/")[2] if self.whole[number] else _part(entry)
            return _open(folder, name, os.O_RDONLY)

    def stop(self, reason: str, *, final: bool) -> None:
        """The rest will not come; `final`: nor to any other host of the route."""
        with self._changed:
            if self._stopped is None:
                self._stopped = Stopped(reason, final=final)
            self._changed.notify_all()

    def close(self) -> None:
        """Leave what is there as it is, to go on another time."""
        self.stop("the receiver has ended", final=False)
        self._leave()

    @contextlib.contextmanager
    def _folder(self, number: int) -> Iterator[int]:
        """The folder of a file, made if need be; no link on the way is followed."""
        handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in [*self._base, *self.entries[number].path.split("/")[:-1]]:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o777, dir_fd=handle)
                inner = os.open(name, FOLDER_FLAGS, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)


def _part(entry: Entry) -> str:
    """What a file is called before it is whole: another name for each content."""
    return PART + hashlib.sha256(f"{entry.path}\n{entry.size}\n{entry.check}".encode()).hexdigest()[:24]


def _open(folder: int, name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
