"""A host that serves stores to others, whole or in part: `cordee data serve`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cordee.core.errors import DataError
from cordee.feed.exchange import messages as said
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.listing import BLOCK, MANIFEST, Entry, check_entries, checked_entry, is_name, known_checksums
from cordee.group.bulk import Gone, Link
from cordee.group.messages import Who


@dataclass
class Served:
    """What a holder has given so far."""

    stores: int = 0
    """How often a store was asked for."""
    files: int = 0
    """Files, or the rest of one, that were sent."""
    size: int = 0
    """Their bytes."""


class Holder:
    """Serves the stores below a folder, or the one that the folder is; files of a store that are not here it skips."""

    def __init__(
        self, folder: Path, place: str, access: Access, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        """Listen from now on; `tell` is given a line for each that asks."""
        self._folder, self._tell = folder.absolute(), tell
        if not self.names:
            raise DataError(
                f"{self._folder} holds no store: expected a folder with {MANIFEST}, or one with such folders in it"
            )
        self.served = Served()
        self._turn = threading.Lock()
        self._listener = access.listen(place)
        self.place = f"{place.rpartition(':')[0]}:{self._listener.port}"
        """Where it listens: with the port that was chosen if none was named."""
        self._listener.start(self._serve)

    @property
    def names(self) -> list[str]:
        """What the stores are called."""
        if (self._folder / MANIFEST).is_file():
            return [self._folder.name]
        return sorted(one.parent.name for one in self._folder.glob(f"*/{MANIFEST}"))

    def close(self) -> None:
        """Serve no more."""
        self._listener.close()

    def _serve(self, link: Link, who: Who) -> None:
        folder, entries = self._folder, list[Entry]()
        while True:
            message = link.receive(said.decode)
            if isinstance(message, said.Ask):
                found = self._find(message.name)
                if isinstance(found, str):
                    link.send(said.Failed(found))
                    continue
                folder, entries = found
                self._tell(f"{who.host[:100]} asks for {folder.name}")
                with self._turn:
                    self.served.stores += 1
                for start in range(0, len(entries), said.BATCH):
                    link.send(said.Entries(entries[start : start + said.BATCH]))
                link.send(said.Finished())
            elif isinstance(message, said.Get) and message.file < len(entries):
                self._give(link, folder, message, entries[message.file])
            elif not isinstance(message, said.Alive):
                raise Gone("a message came that does not belong here")

    def _find(self, name: str) -> tuple[Path, list[Entry]] | str:
        """The folder of a store and the files of it that are here; or why there is none."""
        names = self.names
        if not name and len(names) == 1:
            name = names[0]
        if name not in names or not is_name(name):
            return f"there is no store {name!r} there; there are: {', '.join(names)}"[:1000]
        folder = self._folder if (self._folder / MANIFEST).is_file() else self._folder / name
        try:
            entries = [checked_entry(folder / MANIFEST, MANIFEST)]
            for path, entry in known_checksums(folder / MANIFEST).items():
                if _size(folder / path) == entry.size:
                    entries.append(entry)
            check_entries(entries)
        except (OSError, ValueError, DataError) as error:
            return f"the store {name} there cannot be read: {error}"[:1000]
        return folder, entries

    def _give(self, link: Link, folder: Path, get: said.Get, entry: Entry) -> None:
        buffer, at = memoryview(bytearray(BLOCK)), get.offset
        try:
            handle = os.open(folder / entry.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            link.send(said.Failed(f"{entry.path} cannot be read there: {error.strerror}"))
            return
        try:
            while at < entry.size:
                count = os.preadv(handle, [buffer[: min(BLOCK, entry.size - at)]], at)
                if not count:
                    link.send(said.Failed(f"{entry.path} became shorter there"))
                    return
                link.send(said.Piece(get.file, at, count), [buffer[:count]])
                at += count
        finally:
            os.close(handle)
            with self._turn:
                self.served.files += 1
                self.served.size += max(0, at - get.offset)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
