"""Fetches a store from the hosts that hold it, or parts of it, to the local disk: once per host, in whole shards.

It lies in the cache of stores, under a name of its manifest's, and is removed from there as they are. `<url>.fetched`
holds the name of the store that was last fetched from a URL.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cordee.core import interrupts
from cordee.core.damage import write_whole
from cordee.core.errors import CordeeError, DataError, StorageError, WaitedTooLong
from cordee.core.locks import take_lock
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.landing import Landing
from cordee.feed.exchange.listing import BLOCK, MANIFEST, Entry
from cordee.feed.exchange.remote import Remote, ask, checksum_of, get, manifest_of, offers_of, shards_of, size_of
from cordee.feed.store.cached import Room, bytes_in, cache_folder, opened
from cordee.feed.store.layout import LOCK
from cordee.group.bulk import Link

DEADLINE_S = 3600.0
LOOK_S, TELL_S = 0.2, 2.0


@dataclass(frozen=True)
class Fetched:
    """A store that is on the local disk."""

    folder: Path
    received: int = 0
    """Bytes of files that came over the network just now."""
    had: int = 0
    """Bytes that were here before."""
    by_holder: tuple[tuple[str, int], ...] = ()
    """How many bytes each of the holders has sent."""
    seconds: float = 0.0


def fetch(
    url: str,
    *,
    access: Access,
    folder: Path | None = None,
    deadline_s: float = DEADLINE_S,
    tell: Callable[[str], None] = lambda text: None,
) -> Fetched:
    """Fetch what is lacking of a store, and give its place on the local disk.

    Processes of one host fetch it once: the others wait. Several holders are asked at the same time, each for shards
    that it has; when one of them is lost, the others are asked for the rest.
    """
    began, remote = time.monotonic(), Remote.parse(url)
    root = folder.expanduser().absolute() if folder is not None else cache_folder()
    note = root / f"{checksum_of(url.encode()).removeprefix('sha256:')[:32]}.fetched"
    try:
        offers = offers_of(remote, access)
    except DataError as error:
        if (known := _known(note)) is None:
            raise
        tell(f"{error}. What was fetched from there before is used")
        return known
    raw = manifest_of(remote, offers, access)
    name, until = checksum_of(raw).removeprefix("sha256:")[:32], began + deadline_s
    with contextlib.ExitStack() as locks:
        with _writing(root):
            root.mkdir(parents=True, exist_ok=True)
            locks.callback(os.close, _lock(root / f"{name}.lock", until, tell))
        if _is_whole(root / name, raw):
            fetched = Fetched(root / name, had=size_of(raw))
        else:
            part = _part(root, name, raw)
            with _writing(root):
                part.mkdir(exist_ok=True)
                locks.callback(os.close, _lock(part / LOCK, until, tell))  # so that it is not removed
            work = _Fetching(remote, access, offers, part, raw, tell)
            work.run(until)
            _name(part, root / name)
            fetched = Fetched(
                root / name, sum(work.by_holder.values()), work.had, tuple(sorted(work.by_holder.items()))
            )
        with _writing(root):
            write_whole(note, name)
    return replace(fetched, seconds=time.monotonic() - began)


def _part(root: Path, name: str, raw: bytes) -> Path:
    """Where it grows; older stores are removed until there is room for all of it."""
    host = re.sub(r"[^\w-]", "_", socket.gethostname())
    part = root / f"{name}.{host}.part"
    room = Room(root, root / name, part, 0, "fetch shards when they are needed: store(..., cache=cordee.data.Cache())")
    room.make(0, coming=max(0, size_of(raw) - bytes_in(part)))
    return part


def _name(part: Path, folder: Path) -> None:
    try:
        if folder.exists():  # and is not whole
            gone = folder.with_name(f"{folder.name}.gone-{os.getpid()}")
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        part.rename(folder)
    except OSError as error:
        raise StorageError(f"{part} cannot be given the name {folder.name}: {error.strerror}") from error


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write to {root}: {error.strerror}") from error


def _is_whole(folder: Path, raw: bytes) -> bool:
    """Its manifest was written last, and its files are as long as they were."""
    try:
        return (folder / MANIFEST).read_bytes() == raw and opened(folder) is not None
    except OSError:
        return False


def _known(note: Path) -> Fetched | None:
    """The store that was fetched before, where it is still there."""
    try:
        folder = note.with_name(note.read_text(encoding="utf-8"))
        raw = (folder / MANIFEST).read_bytes()
    except (OSError, ValueError):
        return None
    return Fetched(folder, had=size_of(raw)) if _is_whole(folder, raw) else None


def _lock(path: Path, until: float, tell: Callable[[str], None]) -> int:
    told = 0.0
    while (handle := take_lock(path)) is None:
        if time.monotonic() > until:
            raise WaitedTooLong(
                f"another process of this host still fetches the store: {path} is locked. Is it stopped?"
            )
        if time.monotonic() - told > 10:
            told = time.monotonic()
            tell("waiting for another process of this host, which fetches the store")
        time.sleep(LOOK_S)
    return handle


class _Fetching:
    """One thread for each holder, which takes the next shard that it has."""

    def __init__(
        self,
        remote: Remote,
        access: Access,
        offers: dict[str, list[Entry]],
        part: Path,
        raw: bytes,
        tell: Callable[[str], None],
    ) -> None:
        self._remote, self._access, self._offers = remote, access, offers
        self._part, self._raw, self._tell = part, raw, tell
        self.by_holder = dict.fromkeys(offers, 0)
        self.had = 0
        shards = [shard for shard in shards_of(raw) if shard]
        random.Random(socket.gethostname()).shuffle(shards)  # hosts do not all begin with the same one
        self._waiting = deque(shards)
        self._turn = threading.Condition()
        self._busy = 0
        self._lost: dict[str, str] = {}
        self._failed: BaseException | None = None

    def run(self, until: float) -> None:
        """Fetch all shards, then write the manifest."""
        total = len(self._waiting)
        threads = [
            threading.Thread(target=self._work, args=(holder,), name="cordee-fetch", daemon=True)
            for holder in self._offers
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            next((one for one in threads if one.is_alive()), threads[0]).join(TELL_S)
            interrupts.check()
            if any(thread.is_alive() for thread in threads):
                self._tell(f"fetched {total - len(self._waiting) - self._busy} of {total} shards")
            if time.monotonic() > until:
                raise WaitedTooLong(f"{self._remote.name or 'the store'} was not fetched in time; try again")
        if self._failed is not None:
            raise self._failed
        if self._waiting:
            names = ", ".join(sorted(shard[0].path.partition("/")[0] for shard in self._waiting)[:5])
            lost = "".join(f"; {holder}: {reason}" for holder, reason in self._lost.items())
            raise DataError(
                f"{len(self._waiting)} of {total} shards ({names}) are at none of the holders {', '.join(self._offers)}"
                f"{lost}. Name a holder that has them"
            )
        self._write_manifest()

    def _work(self, holder: str) -> None:
        link: Link | None = None
        try:
            link = self._access.dial(holder)
            numbers = {one: number for number, one in enumerate(ask(link, self._remote.name))}
            while (shard := self._take(numbers)) is not None:
                try:
                    self._fetch(link, holder, shard, numbers)
                except BaseException:
                    self._give_back(shard, done=False)
                    raise
                self._give_back(shard, done=True)
        except (ConnectionError, ValueError, CordeeError) as error:
            self._lost[holder] = str(error)
            self._tell(f"{holder} is lost ({error}): the other holders are asked for the rest")
        except OSError as error:
            self._failed = StorageError(f"cannot write to {self._part}: {error.strerror or error}")
        finally:
            if link is not None:
                link.close()

    def _take(self, numbers: dict[Entry, int]) -> list[Entry] | None:
        """The next shard that this holder has; None if there is none, nor can be."""
        with self._turn:
            while self._failed is None:
                for shard in self._waiting:
                    if all(entry in numbers for entry in shard):
                        self._waiting.remove(shard)
                        self._busy += 1
                        return shard
                if not self._busy:
                    return None
                self._turn.wait(1.0)  # another one may be lost, and give its shard back
            return None

    def _give_back(self, shard: Sequence[Entry], *, done: bool) -> None:
        with self._turn:
            self._busy -= 1
            if not done:
                self._waiting.appendleft(list(shard))
            self._turn.notify_all()

    def _fetch(self, link: Link, holder: str, shard: list[Entry], numbers: dict[Entry, int]) -> None:
        landing = Landing(self._part, "", shard)
        try:
            had = landing.survey(lambda: None)
            for at, entry in enumerate(shard):
                if not landing.whole[at]:
                    take = _writer(landing, at)
                    came = get(link, numbers[entry], entry, landing.sizes[at], take)
                    self.by_holder[holder] += came
            landing.finish_empty()
        finally:
            landing.close()
        self.had += had

    def _write_manifest(self) -> None:
        entry = Entry(MANIFEST, len(self._raw), checksum_of(self._raw))
        landing = Landing(self._part, "", [entry])
        try:
            landing.survey(lambda: None)
            for start in range(landing.sizes[0], len(self._raw), BLOCK):
                landing.write(0, start, memoryview(self._raw)[start : start + BLOCK])
        finally:
            landing.close()


def _writer(landing: Landing, number: int) -> Callable[[int, memoryview], None]:
    return lambda at, part: landing.write(number, at, part)
