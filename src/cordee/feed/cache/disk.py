"""Blocks in files of a local disk, shared by all processes of a host, and safe when any of them is killed at any time.

    lock                    held while something is decided: what is evicted, and who writes a block
    used                    bytes that all files have, or are about to have
    <store>-<block>         a block: a head with its length and checksum, then its bytes
    <store>-<block>.part    one that is written just now: its writer holds a lock on it, which ends with the process

A block is renamed to its name when it is whole. One that is short or damaged is removed, and fetched again. The budget
is reserved before a block is written, so `used` is never too low: a process that is killed leaves it too high, until
the next one opens the folder and counts.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cordee.core.errors import StorageError, WaitedTooLong
from cordee.core.locks import lock
from cordee.feed.cache.policy import Shelf
from cordee.feed.cache.pool import Buffer

_HEAD = struct.Struct("<8sQI4x")
_MAGIC = b"cordee 1"
_PART = ".part"
_SCAN_S = 1.0
"""Other processes' blocks are looked for at most this often."""
_POLL_S = 0.005
Rank = Callable[[int], int]
"""Of a block of this store; the highest is evicted first."""


class Claim:
    """A block's place on the disk, reserved: written once, or given up."""

    def __init__(self, disk: Disk, block: int, handle: int, nbytes: int) -> None:
        """`handle` is the open part."""
        self._disk, self._block, self._handle, self._nbytes = disk, block, handle, nbytes

    def write(self, data: Buffer) -> bool:
        """Write the block; False if the disk does not take it, which is no error: it can be fetched again."""
        try:
            head = _HEAD.pack(_MAGIC, len(data), zlib.crc32(data.data))
            _write_all(self._handle, memoryview(head))
            _write_all(self._handle, data.data)
            self._disk.publish(self._block)
        except OSError:
            self.give_up()
            return False
        os.close(self._handle)
        return True

    def give_up(self) -> None:
        """Nothing is written: others may try."""
        self._disk.release(self._block, self._nbytes)
        os.close(self._handle)


class Disk:
    """The level on disk, as one process sees it; `rank` says of a block when it is needed."""

    def __init__(self, folder: Path, budget: int, key: str, rank: Rank, *, deadline_s: float = 300.0) -> None:
        """Open or make the folder, and count what is in there; `key` names the store and how it is cut into blocks."""
        self.folder, self.budget, self.damaged = folder, budget, 0
        self._key, self._rank, self._deadline_s = key, rank, deadline_s
        self._mine = threading.RLock()
        self._shelf = Shelf(budget)
        """What this process knows to be there of this store."""
        self._others: dict[str, int] = {}
        """Of other stores: those written longest ago first."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._used = os.open(folder / "used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"the cache folder {folder} cannot be used ({error.strerror}): name another one, Cache(folder=...), or "
                "do without, Cache(disk=0)"
            ) from error
        self._scanned = 0.0
        with self._alone():
            self._scan()

    def path(self, block: int) -> Path:
        """Where a block lies, if it is there."""
        return self.folder / f"{self._key}-{block}"

    def close(self) -> None:
        """Release the folder; nothing is removed."""
        os.close(self._lock)
        os.close(self._used)

    def read(self, block: int, into: Buffer) -> bool:
        """Read a block if it is there and whole; one that another process writes just now is waited for."""
        deadline = time.monotonic() + self._deadline_s
        while True:
            try:
                with self.path(block).open("rb", buffering=0) as file:
                    return self._checked(block, file.fileno(), into)
            except FileNotFoundError:
                with self._mine:
                    self._shelf.drop(block)
            except OSError:  # of another user, or the disk fails: it can be fetched again
                return False
            if not self._is_being_written(block) or time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)

    def claim(self, block: int, nbytes: int) -> Claim | None:
        """Reserve room for a block that is not there, for which others may have to go; None: it is not to be kept."""
        nbytes += _HEAD.size
        with self._alone():
            path = self.path(block)
            if path.exists() or not self._clear_part(path):
                return None
            rank = self._rank(block)
            while self.used + nbytes > self.budget:
                victims = self._room(block, nbytes, rank)
                if not victims:
                    return None
                for victim in victims:
                    self._remove(victim)
            self._account(nbytes)
            try:
                handle = os.open(f"{path}{_PART}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                while lock(handle) is False:  # for a moment: a reader asks whether it is locked
                    time.sleep(_POLL_S / 5)
                os.truncate(handle, nbytes)  # a scan finds the size that is reserved
            except OSError:
                self._account(-nbytes)
                return None
            self._shelf.put(block, nbytes, rank)
            return Claim(self, block, handle, nbytes)

    def rerank(self, block: int | None = None) -> None:
        """The ranks of a block, or of all of them, have changed."""
        with self._mine:
            for one in list(self._shelf) if block is None else [block]:
                self._shelf.rank(one, self._rank(one))

    def publish(self, block: int) -> None:
        """A part is whole: give it its name. With the lock, so that no scan misses it on the way."""
        with self._alone():
            os.replace(f"{self.path(block)}{_PART}", self.path(block))

    def release(self, block: int, nbytes: int) -> None:
        """A part that is given up does not count any more."""
        with self._alone():
            with suppress(OSError):
                os.unlink(f"{self.path(block)}{_PART}")
            self._shelf.drop(block)
            self._account(-nbytes)

    @property
    def used(self) -> int:
        """Bytes that files have or are about to have, of all processes; never too low."""
        raw = os.pread(self._used, 8, 0)
        return int.from_bytes(raw, "little") if len(raw) == 8 else 0

    # ------------------------------------------------------------- with the lock

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process and thread at a time is in here."""
        with self._mine:
            deadline = time.monotonic() + self._deadline_s
            while lock(self._lock) is False:
                if time.monotonic() > deadline:
                    raise WaitedTooLong(
                        f"waited {self._deadline_s:g} s for {self.folder / 'lock'}: another process holds it and does "
                        "not continue; end it, or name another folder, Cache(folder=...)"
                    )
                time.sleep(_POLL_S / 5)
            try:
                yield
            finally:
                _unlock(self._lock)

    def _room(self, block: int, nbytes: int, rank: int) -> list[str]:
        """The names of files that make room; none if what is there is worth more."""
        for fresh in (False, True):
            if fresh:
                if time.monotonic() < self._scanned + _SCAN_S:
                    break
                self._scan()
            used, need = self.used, self.used + nbytes - self.budget
            victims: list[str] = []
            for name, size in self._others.items():  # no reader of this store needs them
                if need <= 0:
                    break
                victims.append(name)
                need -= size
            if need <= 0:
                return victims
            unknown = used - self._shelf.used - sum(self._others.values())
            self._shelf.budget = self.budget - unknown
            verdict = self._shelf.decide(block, nbytes, rank)
            if verdict.admit:
                return victims + [self.path(one).name for one in verdict.evict]
        return []

    def _scan(self) -> None:
        """Count all files, remove parts of processes that are gone, and take note of blocks of others."""
        self._scanned, used = time.monotonic(), 0
        own, others = {}, []
        for entry in os.scandir(self.folder):
            if entry.name in ("lock", "used"):
                continue
            if entry.name.endswith(_PART) and self._clear_part(self.folder / entry.name.removesuffix(_PART)):
                continue
            with suppress(FileNotFoundError):
                stat = entry.stat(follow_symlinks=False)
                used += stat.st_size
                key, _, number = entry.name.rpartition("-")
                if key == self._key and number.isdigit():
                    own[int(number)] = stat.st_size
                elif not entry.name.endswith(_PART):
                    others.append((stat.st_mtime_ns, entry.name, stat.st_size))
        for block in [one for one in self._shelf if one not in own]:
            self._shelf.drop(block)
        for block, size in own.items():
            self._shelf.put(block, size, self._rank(block))
        self._others = {name: size for _, name, size in sorted(others)}
        os.pwrite(self._used, used.to_bytes(8, "little"), 0)

    def _clear_part(self, path: Path) -> bool:
        """Remove the part of a process that is gone; False if it is being written."""
        if _is_locked(f"{path}{_PART}"):
            return False
        with suppress(OSError):
            size = os.stat(f"{path}{_PART}").st_size
            os.unlink(f"{path}{_PART}")
            self._account(-size)
        return True

    def _remove(self, name: str) -> None:
        key, _, number = name.rpartition("-")
        if key == self._key:
            self._shelf.drop(int(number))
        self._others.pop(name, None)
        with suppress(OSError):  # another process was faster, and has counted it
            size = os.stat(self.folder / name).st_size
            os.unlink(self.folder / name)
            self._account(-size)

    def _account(self, nbytes: int) -> None:
        os.pwrite(self._used, max(0, self.used + nbytes).to_bytes(8, "little"), 0)

    # ------------------------------------------------------------- without it

    def _checked(self, block: int, handle: int, into: Buffer) -> bool:
        """Read an open block; what is not whole is removed."""
        head = os.read(handle, _HEAD.size)
        count = _read_all(handle, into.data) if len(head) == _HEAD.size else 0
        if (
            len(head) == _HEAD.size
            and _HEAD.unpack(head) == (_MAGIC, count, zlib.crc32(into.data))
            and count == len(into)
        ):
            return True
        with self._alone():
            self.damaged += 1
            if os.path.exists(self.path(block)) and os.path.samestat(os.stat(self.path(block)), os.fstat(handle)):
                self._remove(self.path(block).name)
        return False

    def _is_being_written(self, block: int) -> bool:
        return _is_locked(f"{self.path(block)}{_PART}")


def _is_locked(path: str) -> bool:
    """Whether a process has this file open and locked."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return lock(handle, shared=True) is False
    finally:
        os.close(handle)


def _unlock(handle: int) -> None:
    import fcntl

    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)


def _write_all(handle: int, data: memoryview) -> None:
    data = data.cast("B")
    while len(data):
        data = data[os.write(handle, data) :]


def _read_all(handle: int, into: memoryview) -> int:
    """How many bytes were there, up to the length of `into`."""
    into, count = into.cast("B"), 0
    while count < len(into) and (got := os.readv(handle, [into[count:]])):
        count += got
    return count
