"""A host that takes files to its local disk, and passes them on: `cordee data receive`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cordee.core.errors import DataError, StorageError
from cordee.core.locks import take_lock
from cordee.feed.exchange import messages as said
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.delivery import Delivery, linger
from cordee.feed.exchange.listing import PART, Entry, check_entries, is_name
from cordee.feed.exchange.probe import answer_probe, speed_of
from cordee.group.bulk import Gone, Link
from cordee.group.messages import Who

LOCK = ".cordee-receiving"


class Receiver:
    """Listens at one place, for one folder."""

    def __init__(
        self, folder: Path, place: str, access: Access, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        """Take deliveries from now on; `tell` is given a line for each."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = take_lock(folder / LOCK)
        except OSError as error:
            raise StorageError(f"cannot write to {folder.absolute()}: {error.strerror}") from error
        if lock is None:
            raise DataError(f"another process receives into {folder.absolute()}: choose another folder, or end it")
        self._lock, self._folder, self._access, self._tell = lock, folder, access, tell
        self._deliveries: dict[str, Delivery] = {}
        """The last one of each name, while it goes on; one that has ended, until another one begins."""
        self._running: list[Delivery] = []
        self._turn = threading.Lock()
        self._ended: list[Delivery] = []
        try:
            self._listener = access.listen(place)
        except BaseException:
            os.close(lock)
            raise
        host = place.rpartition(":")[0]
        self.place = f"{host}:{self._listener.port}"
        """Where it listens: with the port that was chosen if none was named."""
        self._listener.start(self._serve)

    def wait(self, count: int = 1, deadline_s: float = float("inf")) -> list[Delivery]:
        """The next deliveries that have ended, whole or not, as soon as there are `count`; fewer at the deadline."""
        ends = time.monotonic() + deadline_s
        while len(self._ended) < count and time.monotonic() < ends:
            with self._turn:
                running = list(self._running)
            for one in running:
                one.watch()
                if one.over.is_set():
                    self._ended.append(one)
                    with self._turn:
                        self._running.remove(one)
            time.sleep(0.02)
        given, self._ended = self._ended[:count], self._ended[count:]
        return given

    @property
    def busy(self) -> bool:
        """Whether a delivery goes on."""
        with self._turn:
            return bool(self._running)

    def close(self) -> None:
        """Take no more; what has come in part stays, and is gone on with another time."""
        self._listener.close()
        with self._turn:
            for one in self._running:
                one.landing.stop("the receiver has ended", final=False)
        os.close(self._lock)

    def _serve(self, link: Link, who: Who) -> None:
        while True:
            message = link.receive(said.decode)
            if isinstance(message, said.Probe):
                answer_probe(link, message)
            elif isinstance(message, said.Measure):
                link.send(speed_of(self._access, message.host))
            elif isinstance(message, said.Offer):
                self._receive(link, message)
                return
            else:
                raise Gone("a message came that does not belong here")

    def _receive(self, link: Link, offer: said.Offer) -> None:
        try:
            entries = self._entries(link, offer)
            delivery = self._delivery(offer, entries)
        except ValueError as error:
            link.send(said.Failed(str(error)[:1000]))
            linger(link)
            return
        delivery.serve(link)

    def _entries(self, link: Link, offer: said.Offer) -> list[Entry]:
        entries: list[Entry] = []
        while len(entries) < offer.files:
            message = link.receive(said.decode)
            if not isinstance(message, said.Entries) or not message.entries:
                raise Gone("a message came that does not belong here")
            entries += message.entries
        if len(entries) > offer.files:
            raise ValueError(f"{len(entries)} files were named, {offer.files} announced")
        if offer.name and (not is_name(offer.name) or offer.name.startswith(PART)):
            raise ValueError(f"{offer.name!r} is no name of a folder")
        check_entries(entries)
        return entries

    def _delivery(self, offer: said.Offer, entries: list[Entry]) -> Delivery:
        """The one of this offer: that which has begun, or a new one in place of one that no peer sends any more."""
        with self._turn:
            there = self._deliveries.get(offer.name)
            if there is not None and there.offer.id == offer.id and list(there.landing.entries) == entries:
                return there
            if there is not None and not there.settled:
                if not there.orphaned:
                    raise ValueError(f"{offer.name or 'a file'} is being sent there by another host: wait for its end")
                threading.Thread(target=there.fail, args=("it is sent anew",), daemon=True).start()
            self._deliveries = {name: one for name, one in self._deliveries.items() if not one.over.is_set()}
            new = Delivery(self._folder, offer, entries, self._access, self._tell)
            self._deliveries[offer.name] = new
            self._running.append(new)
            return new
