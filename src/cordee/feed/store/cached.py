"""Stores that are built once per host, in the user's cache: by one process, while others wait for it.

`CORDEE_CACHE` names the folder (`~/.cache/cordee/data`), `CORDEE_CACHE_BYTES` how much may lie there: by default half
of what the disk has for it. What was not used for longest goes first, and nothing that a process has open.

    <key>/                  a store
    <key>.<host>.part/      one that is being built, or whose build was ended
    <key>.lock              held by the process that builds it
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cordee.core import interrupts
from cordee.core.errors import DataError, StorageError, UsageError, WaitedTooLong
from cordee.core.locks import take_lock
from cordee.core.text import plain
from cordee.feed.store.build import Progress, Tell, build, manifest_of, shown, spread_for
from cordee.feed.store.layout import BUILDING, LOCK
from cordee.feed.store.opened import Store, open_store
from cordee.feed.store.recipe import Recipe
from cordee.feed.store.write import storage_errors

DEADLINE_S = 600.0
"""How long a process waits for another one's build that makes no progress."""
_LOOK_S, _SAY_EVERY_S = 0.1, 2.0
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def cache_folder() -> Path:
    """Where stores are kept for which the user named no folder."""
    if given := os.environ.get("CORDEE_CACHE"):
        return Path(given).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "cordee" / "data"


def cached_store(
    recipe: Recipe, *, processes: int | None = None, tell: Tell | None = None, deadline_s: float = DEADLINE_S
) -> Store:
    """The store of a recipe, built in the cache unless it is there already."""
    root = cache_folder()
    entry = root / recipe.key
    if (store := opened(entry)) is not None:
        return store
    with storage_errors(root, 0):
        try:
            root.mkdir(parents=True, exist_ok=True)
            lock = _await(root, recipe, deadline_s)
        except PermissionError as error:
            raise StorageError(
                f"cannot write the cache {root}: {error.strerror}; set CORDEE_CACHE to a folder of your own, or build "
                "a store where you can write, with `cordee data build`"
            ) from error
    if isinstance(lock, Store):
        return lock
    try:
        return _built(root, entry, recipe, processes, tell or Say(f"building the store {entry}"))
    finally:
        os.close(lock)


def _built(root: Path, entry: Path, recipe: Recipe, processes: int | None, tell: Tell) -> Store:
    """Build it under the lock, and give it its name."""
    if (store := opened(entry)) is not None:  # built while we waited for the lock
        return store
    part = root / f"{recipe.key}.{_host()}.part"
    at_once = max(1, *spread_for(recipe, len(recipe.spans), processes))
    # Each may be about to write a shard; one shard over the budget is tolerated.
    ahead = (at_once - 1) * recipe.shard_bytes
    room = Room(root, entry, part, ahead, "build it elsewhere with `cordee data build SOURCE OUT` and train from OUT")

    def hear(progress: Progress) -> None:
        room.make(progress.nbytes)
        tell(progress)

    _remove(entry)  # damaged
    try:
        room.make(0)
        build(recipe, part, processes=processes, tell=hear, durable=False)
    except _Full:
        shutil.rmtree(part, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):  # on a file system without locks another host may have been first
        part.rename(entry)
    shutil.rmtree(part, ignore_errors=True)
    store = opened(entry)
    if store is None:
        raise StorageError(
            f"{entry} was removed as soon as it was built: give the cache more room (CORDEE_CACHE_BYTES)"
        )
    return store


def opened(entry: Path) -> Store | None:
    """The store, if it is there and whole."""
    if manifest_of(entry) is None:
        return None
    try:
        store = open_store(entry)
    except DataError:
        return None
    with contextlib.suppress(OSError):  # when it was used last
        os.utime(entry / LOCK)
    return store


def _await(root: Path, recipe: Recipe, deadline_s: float) -> int | Store:
    """The lock of a build; or the store, where another process has built it."""
    path, entry, say = root / f"{recipe.key}.lock", root / recipe.key, Say("")
    part = root / f"{recipe.key}.{_host()}.part"
    seen, since = -1.0, time.monotonic()
    while True:
        if (lock := take_lock(path)) is not None:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            return lock
        if (store := opened(entry)) is not None:
            return store
        interrupts.check()
        who = path.read_text(encoding="utf-8", errors="replace")
        if (changed := _changed(part)) != seen:
            seen, since = changed, time.monotonic()
        waited_s = time.monotonic() - since
        if waited_s > deadline_s:
            raise WaitedTooLong(
                f"{who or 'another process'} builds the store {entry} and has made no progress for {deadline_s:g} s: "
                "end that process, which lets this one go on with its work"
            )
        say.line(f"waiting for {who or 'another process'}, which builds the store {entry}")
        time.sleep(_LOOK_S)


def _changed(part: Path) -> float:
    """When a build has last written something."""
    times = []
    for path in (part, part / BUILDING):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


# ------------------------------------------------------------- room


class _Full(StorageError):
    """The store is larger than the cache may be."""


@dataclass(frozen=True)
class _Entry:
    path: Path
    used: float
    nbytes: int


class Room:
    """Keeps the cache within its budget while a store grows in it."""

    def __init__(self, root: Path, entry: Path, part: Path, ahead: int, advice: str) -> None:
        """The store grows in `part`, up to `ahead` bytes before that is told; `advice`: what else is to be done."""
        self._root, self._entry, self._part, self._advice = root, entry, part, advice
        self._begun, self._ahead = bytes_in(part), ahead
        self._budget = budget_of(root)
        self._others = sum(one.nbytes for one in self._list())

    def make(self, nbytes: int, coming: int = 0) -> None:
        """Remove old stores until there is room; so many bytes of rows were made, and so many are known to come."""
        if self._fits(nbytes + coming):
            return
        self._begun = bytes_in(self._part) - nbytes  # some were made twice, by processes that died
        entries = self._list()
        self._others = sum(one.nbytes for one in entries)
        for one in sorted(entries, key=lambda one: one.used):
            if self._fits(nbytes + coming):
                return
            if _remove(one.path):
                self._others -= one.nbytes
        if self._others + (takes := self._begun + nbytes + coming) > self._budget:
            used = f", {self._others:,} of them in use by other processes" if self._others else ""
            raise _Full(
                f"the store {self._entry} takes {takes:,} bytes{'' if coming else ' so far'}, and the cache "
                f"{self._root} may hold {self._budget:,}{used}: set CORDEE_CACHE_BYTES, or {self._advice}"
            )

    def _fits(self, nbytes: int) -> bool:
        return self._others + self._begun + nbytes + self._ahead <= self._budget

    def _list(self) -> list[_Entry]:
        return [one for one in entries_of(self._root) if one.path not in (self._entry, self._part)]


def entries_of(root: Path) -> Iterator[_Entry]:
    """Stores in a cache, and unfinished ones, with their sizes."""
    for path in root.iterdir() if root.is_dir() else ():
        if re.fullmatch(r"[0-9a-f]{32}(\..*\.part|\.gone-\d+)?", path.name):
            with contextlib.suppress(OSError):
                used = (path / LOCK).stat().st_mtime if (path / LOCK).exists() else path.stat().st_mtime
                manifest = manifest_of(path)
                shards = [one for each in manifest.sets.values() for one in each] if manifest else None
                known = None if shards is None else sum(file.size for one in shards for file in one.files)
                yield _Entry(path, used, bytes_in(path) if known is None else known)


def budget_of(root: Path) -> int:
    """Bytes that the cache may take."""
    given = os.environ.get("CORDEE_CACHE_BYTES", "")
    if given:
        found = re.fullmatch(r"([\d.]+)\s*([KMGT]?)(iB|B)?", given.strip(), re.IGNORECASE)
        if found is None:
            raise UsageError(f"CORDEE_CACHE_BYTES={given!r}: a number of bytes was expected, such as 50G")
        return int(float(found[1]) * _UNITS[found[2].upper()])
    near = next(one for one in (root, *root.parents) if one.is_dir())
    return (shutil.disk_usage(near).free + sum(one.nbytes for one in entries_of(root))) // 2


def _remove(path: Path) -> bool:
    """Remove a store that no process has open, nor builds; whether it is gone."""
    builders = path.with_name(f"{path.name[:32]}.lock")
    with contextlib.ExitStack() as locks:
        if not path.exists():
            return False
        building = not _locked(builders, locks)
        if building and path.name.endswith(".part"):  # it may be whole, and about to be given its name
            return False
        if not _locked(path / LOCK, locks):
            return False
        gone = path.with_name(f"{path.name[:32]}.gone-{os.getpid()}")
        path.rename(gone)  # at once, so that no process opens half of it
        shutil.rmtree(gone, ignore_errors=True)
        if not building:
            builders.unlink(missing_ok=True)
        return True


def _locked(path: Path, locks: contextlib.ExitStack) -> bool:
    """Whether the lock at `path` could be taken; it is held until `locks` is closed."""
    try:
        handle = take_lock(path)
    except OSError:
        return False
    if handle is not None:
        locks.callback(os.close, handle)
    return handle is not None


def bytes_in(path: Path) -> int:
    """Bytes of all files in a folder."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _host() -> str:
    return re.sub(r"[^\w-]", "_", socket.gethostname()) or "host"


class Say:
    """Lines on standard error while something takes long."""

    def __init__(self, what: str) -> None:
        """Say what it is that takes long."""
        self._what, self._last = what, time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """How far it has come."""
        self.line(f"{self._what}: {shown(progress)}")

    def line(self, text: str) -> None:
        """At most one every few seconds, the first after as many."""
        if time.monotonic() - self._last > _SAY_EVERY_S:
            self._last = time.monotonic()
            print(plain(f"cordee: {text}"), file=sys.stderr, flush=True)  # noqa: T201
