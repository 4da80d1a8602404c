"""Shards of a store that is scattered over hosts, one at a time, from those that hold them."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cordee.core.errors import CordeeError, DataError
from cordee.feed.counted import Counters
from cordee.feed.exchange.access import Access, split_place
from cordee.feed.exchange.listing import MANIFEST, Entry
from cordee.feed.exchange.remote import Remote, ask, get, manifest_of, offers_of
from cordee.feed.locality import Holders
from cordee.feed.store.layout import Shard
from cordee.group.bulk import Link

LOST_S = 30.0
"""So long a holder that could not be reached is asked only for what no other one gives."""


class Turns:
    """Which holder is asked next: one that is there, with the fewest bytes on their way, then the fewest so far."""

    def __init__(self) -> None:
        """None was asked yet."""
        self._turn = threading.Lock()
        self._under_way: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._lost: dict[str, float] = {}
        self._first: dict[str, float] = {}
        """Of those that are equal, the first: another one in each process."""

    def next_of(self, holders: Collection[str]) -> str:
        """The best one of these."""

        def rank(holder: str) -> tuple[bool, int, int, float]:
            lost = time.monotonic() < self._lost.get(holder, 0.0)
            first = self._first.setdefault(holder, random.random())
            return lost, self._under_way[holder], self._asked[holder], first

        with self._turn:
            return min(holders, key=rank)

    @contextmanager
    def asking(self, holder: str, nbytes: int) -> Iterator[None]:
        """While it is asked for so many bytes; an error means that it is lost."""
        with self._turn:
            self._under_way[holder] += nbytes
            self._asked[holder] += nbytes
        try:
            yield
        except Exception:
            with self._turn:
                self._lost[holder] = time.monotonic() + LOST_S
            raise
        else:
            with self._turn:
                self._lost.pop(holder, None)
        finally:
            with self._turn:
                self._under_way[holder] -= nbytes


@dataclass(frozen=True)
class FromHolders:
    """Brings whole files of a store, from all hosts that hold them by turns; when one is lost, from the others."""

    remote: Remote
    access: Access
    counters: Counters = field(default_factory=Counters, compare=False)
    """How many bytes each of them has given to this process."""
    _here: threading.local = field(default_factory=threading.local, compare=False, repr=False)
    _turns: Turns = field(default_factory=Turns, compare=False, repr=False)
    _offers: dict[str, list[Entry]] = field(default_factory=dict, compare=False, repr=False)
    _found: dict[str, dict[str, Entry]] = field(default_factory=dict, compare=False, repr=False)
    """Of each file, the holders that have it."""

    def __reduce__(self) -> Any:
        """A process that is sent it asks for itself."""
        return FromHolders, (self.remote, self.access)

    @property
    def offers(self) -> dict[str, list[Entry]]:
        """The files that each holder has; asked for once."""
        if not self._offers:
            self._offers.update(offers_of(self.remote, self.access))
        return self._offers

    def __call__(self, path: str, start: int, count: int) -> bytes:
        """A file; parts of one are not given out."""
        if path == MANIFEST:
            return manifest_of(self.remote, self.offers, self.access)
        reasons = []
        if not self._found:
            self._found.update(_by_path(self.offers))
        there = dict(self._found.get(path, {}))
        while there:
            holder = self._turns.next_of(there)
            entry = there.pop(holder)
            try:
                with self._turns.asking(holder, entry.size):
                    return self._got(holder, entry)
            except (OSError, ValueError, CordeeError) as error:
                self._links.pop(holder, None)
                reasons.append(f"; {holder}: {error}")
        raise DataError(
            f"{path} of {self.remote.name or 'the store'} is at none of the holders {', '.join(self.offers)}"
            f"{''.join(reasons)}. Name a holder that has it, or start `cordee data serve` there again"
        )

    def held(self, shards: Sequence[Shard]) -> Holders:
        """Which of these shards each host holds."""
        runs: dict[str, list[int]] = {}
        for holder, entries in self.offers.items():
            there = {entry.path for entry in entries}
            whole = [
                number
                for number, shard in enumerate(shards)
                if all(f"{shard.folder}/{file.name}" in there for file in shard.files)
            ]
            runs.setdefault(_address(holder), []).extend(whole)
        return Holders.of([shard.rows for shard in shards], runs)

    @property
    def _links(self) -> dict[str, tuple[Link, dict[str, int]]]:
        """Of this thread: the connection to each holder, and the numbers that files have on it."""
        links: dict[str, tuple[Link, dict[str, int]]] = self._here.__dict__.setdefault("links", {})
        return links

    def _got(self, holder: str, entry: Entry) -> bytes:
        """One file; once more where the connection was left alone for too long."""
        if holder in self._links:
            try:
                return self._asked(holder, entry)
            except (OSError, ValueError):
                self._links.pop(holder)[0].close()
        link = self.access.dial(holder)
        self._links[holder] = link, {one.path: at for at, one in enumerate(ask(link, self.remote.name))}
        return self._asked(holder, entry)

    def _asked(self, holder: str, entry: Entry) -> bytes:
        link, numbers = self._links[holder]
        if entry.path not in numbers:
            raise ValueError("it does not have it any more")
        data = bytearray()
        came = get(link, numbers[entry.path], entry, 0, lambda at, part: data.extend(part))
        self.counters.count(holders={holder: came})
        return bytes(data)


def _by_path(offers: dict[str, list[Entry]]) -> dict[str, dict[str, Entry]]:
    found: dict[str, dict[str, Entry]] = {}
    for holder, entries in offers.items():
        for entry in entries:
            found.setdefault(entry.path, {})[holder] = entry
    return found


def _address(holder: str) -> str:
    """That of a holder's host, by which workers are known too."""
    host, _ = split_place(holder)
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host
