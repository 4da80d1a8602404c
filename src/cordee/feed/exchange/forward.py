"""Sends files along hosts: each gets from the one before it what it lacks, and passes it on while it comes.

A host that is not there, or is lost on the way, is left out: the one before it goes on with the one behind it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from cordee.core.errors import CordeeError, DataError
from cordee.feed.exchange import messages as said
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.landing import Stopped
from cordee.feed.exchange.listing import BLOCK, Entry
from cordee.feed.exchange.messages import Offer, Outcome
from cordee.group.bulk import Gone, Link


class Refused(Exception):
    """The other end says that it cannot go on, and why."""


class Replaced(Exception):
    """Another host sends to the other end in our place."""


class Holding(Protocol):
    """Where files are read from that are sent."""

    @property
    def entries(self) -> Sequence[Entry]:
        """All of them."""
        ...

    def available(self, number: int, offset: int, wait_s: float) -> int:
        """How far a file is there, beyond `offset`, waiting at most so long; `Stopped` if the rest will not come."""
        ...

    def open(self, number: int) -> int:
        """A descriptor for reading it."""
        ...


class Folder:
    """Files that are all there."""

    def __init__(self, path: Path, entries: Sequence[Entry]) -> None:
        """Of a folder, or one file."""
        self.entries = entries
        self._path = path

    def available(self, number: int, offset: int, wait_s: float) -> int:
        """All of it."""
        return self.entries[number].size

    def open(self, number: int) -> int:
        """For reading."""
        path = self._path if self._path.is_file() else self._path / self.entries[number].path
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Stopped(f"{path} cannot be read: {error.strerror}", final=True) from error


class Forward:
    """Sends the files of a holding to a row of hosts, through the first of them that is there."""

    def __init__(self, access: Access, holding: Holding, offer: Offer, tell: Callable[[str], None]) -> None:
        """`offer.route` are the hosts; `tell` is given a line for each that is left out."""
        self._access, self._holding, self._offer, self._tell = access, holding, offer, tell
        self._beat_s = min(1.0, access.silence_s / 4)
        self.sent = 0
        """Bytes of files so far."""

    def run(self) -> list[Outcome]:
        """What became of each host of the route."""
        outcomes: list[Outcome] = []
        route = list(self._offer.route)
        while route:
            first, *rest = route
            try:
                return outcomes + self._through(first, rest)
            except Replaced:
                return outcomes  # who sends in our place tells of them
            except Stopped as stop:
                return outcomes + [Outcome(host, False, reason=str(stop)) for host in route]
            except (OSError, Refused, CordeeError) as error:
                reason = str(error)[:1000]
                self._tell(f"{first} is left out: {reason}")
                outcomes.append(Outcome(first, False, reason=reason))
                route = rest
        return outcomes

    def _through(self, host: str, rest: list[str]) -> list[Outcome]:
        link = self._access.dial(host)
        try:
            entries = list(self._holding.entries)
            link.send(msgspec.structs.replace(self._offer, host=host, route=rest, files=len(entries)))
            for start in range(0, len(entries), said.BATCH):
                link.send(said.Entries(entries[start : start + said.BATCH]))
            try:
                self._send(link, self._lacking(link))
            except Stopped as stop:
                if stop.final:  # otherwise the one before us goes on in our place
                    link.send(said.Failed(str(stop)[:1000]))
                raise
            link.send(said.Finished())
            answer = _next(link)
            if not isinstance(answer, said.Report) or [one.host for one in answer.outcomes][:1] != [host]:
                raise Gone("it did not say how it went")
            return answer.outcomes
        finally:
            link.close()

    def _lacking(self, link: Link) -> list[tuple[int, int]]:
        lacking: dict[int, int] = {}
        entries = self._holding.entries
        while True:
            answer = _next(link)
            if not isinstance(answer, said.Lacks):
                raise Gone("it did not say what it lacks")
            for number, offset in answer.files:
                if number >= len(entries) or offset > entries[number].size:
                    raise Gone("it lacks what was not offered")
                lacking[number] = offset
            if not answer.more:
                return sorted(lacking.items())

    def _send(self, link: Link, lacking: list[tuple[int, int]]) -> None:
        buffer = memoryview(bytearray(BLOCK))
        beaten = time.monotonic()
        for number, offset in lacking:
            handle, at, size = -1, offset, self._holding.entries[number].size
            try:
                while at < size:
                    until = self._holding.available(number, at, self._beat_s)
                    if until > at:
                        handle = self._holding.open(number) if handle < 0 else handle
                        at += self._send_piece(link, handle, number, at, buffer[: min(BLOCK, until - at)])
                        beaten = time.monotonic()
                    elif time.monotonic() - beaten >= self._beat_s:
                        link.send(said.Alive())
                        beaten = time.monotonic()
                    if link.ready():
                        _next(link, wait=False)
            finally:
                if handle >= 0:
                    os.close(handle)

    def _send_piece(self, link: Link, handle: int, number: int, at: int, part: memoryview) -> int:
        count = os.preadv(handle, [part], at)
        if count == 0:
            raise Stopped(f"{self._holding.entries[number].path} became shorter while it was sent", final=True)
        link.send(said.Piece(number, at, count), [part[:count]])
        self.sent += count
        return count


def _next(link: Link, *, wait: bool = True) -> said.Exchanged:
    """What the other end says, but that it is alive; an error if it says that it cannot go on."""
    while True:
        message = link.receive(said.decode)
        if isinstance(message, said.Failed):
            raise Replaced if message.replaced else Refused(message.reason)
        if not isinstance(message, said.Alive) or not wait:
            return message


def must_be_whole(outcomes: Sequence[Outcome], what: str) -> None:
    """`DataError` that names the hosts which do not have all."""
    if wrong := [one for one in outcomes if not one.complete]:
        named = "; ".join(f"{one.host}: {one.reason}" for one in wrong)
        raise DataError(
            f"{what} is not complete on {len(wrong)} of {len(outcomes)} hosts ({named}). Send it again when they can "
            "be reached: only what they lack travels"
        )
