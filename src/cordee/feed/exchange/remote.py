"""A store at hosts that hold it, or parts of it: `cordee://HOST:PORT,HOST:PORT/NAME`, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from cordee.core.errors import CordeeError, DataError, UsageError
from cordee.feed.exchange import messages as said
from cordee.feed.exchange.access import Access, split_place
from cordee.feed.exchange.listing import BLOCK, MANIFEST, MOST_FILES, Checksum, Entry, check_entries
from cordee.feed.store.check import check_manifest
from cordee.feed.store.layout import Manifest
from cordee.group.bulk import Gone, Link

SCHEME = "cordee://"
MOST_MANIFEST = 1 << 28


@dataclass(frozen=True)
class Remote:
    """Where a store is to be had: `cordee://HOST:PORT,HOST:PORT/NAME`."""

    holders: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, url: str) -> Remote:
        """From its URL."""
        places, _, name = url.removeprefix(SCHEME).partition("/")
        holders = tuple(one for one in places.split(",") if one)
        if not url.startswith(SCHEME) or not holders or "/" in name:
            raise UsageError(
                f"{url!r}: expected cordee://HOST:PORT/NAME, or several HOST:PORT with commas between them"
            )
        for one in holders:
            split_place(one)
        return cls(holders, name)


def offers_of(remote: Remote, access: Access) -> dict[str, list[Entry]]:
    """The files that each holder has; holders that do not answer are left out."""
    found: dict[str, list[Entry]] = {}
    reasons = []
    for holder in remote.holders:
        try:
            link = access.dial(holder)
            try:
                found[holder] = ask(link, remote.name)
            finally:
                link.close()
        except (OSError, ValueError, CordeeError) as error:
            reasons.append(f"{holder}: {error}")
    if not found:
        raise DataError(
            f"no holder of {remote.name or 'the store'} answers ({'; '.join(reasons)}): start `cordee data serve` there"
        )
    return found


def ask(link: Link, name: str) -> list[Entry]:
    """The files of a store that a holder has, by their numbers there; `ValueError` if it has no such store."""
    link.send(said.Ask(name))
    entries: list[Entry] = []
    while not isinstance(message := link.receive(said.decode), said.Finished):
        if isinstance(message, said.Failed):
            raise ValueError(message.reason)
        if not isinstance(message, said.Entries):
            raise Gone("a message came that does not belong here")
        entries += message.entries
        if len(entries) > MOST_FILES:
            raise ValueError(f"it lists more than {MOST_FILES:,} files")
    check_entries(entries)
    if not any(one.path == MANIFEST for one in entries):
        raise ValueError(f"it has no {MANIFEST} of the store")
    return entries


def get(link: Link, number: int, entry: Entry, offset: int, take: Callable[[int, memoryview], None]) -> int:
    """The rest of a file, from `offset` on, in pieces to `take`; how many bytes came."""
    link.send(said.Get(number, offset))
    buffer, at = memoryview(bytearray(BLOCK)), offset
    while at < entry.size:
        message = link.receive(said.decode)
        if isinstance(message, said.Failed):
            raise Gone(message.reason)
        if not isinstance(message, said.Piece) or (message.file, message.offset) != (number, at):
            raise Gone("a message came that does not belong here")
        if at + message.size > entry.size:
            raise Gone(f"{entry.path} is longer than it was said to be")
        part = buffer[: message.size]
        link.receive_into([part])
        take(at, part)
        at += message.size
    return at - offset


def manifest_of(remote: Remote, offers: dict[str, list[Entry]], access: Access) -> bytes:
    """The bytes of the manifest, which is the same at all holders."""
    checks = {next(one.check for one in entries if one.path == MANIFEST) for entries in offers.values()}
    if len(checks) > 1:
        raise DataError(
            f"the holders {', '.join(offers)} have different stores called {remote.name or 'so'}: send the same one to "
            "all of them, or name only those that have the one you mean"
        )
    reason = ""
    for holder in offers:
        data = bytearray()
        try:
            link = access.dial(holder)
            try:
                entries = ask(link, remote.name)
                number = next(at for at, one in enumerate(entries) if one.path == MANIFEST)
                if entries[number].size > MOST_MANIFEST:
                    raise Gone(f"its manifest has {entries[number].size} bytes")
                get(link, number, entries[number], 0, lambda at, part: data.extend(part))  # noqa: B023 - called here
            finally:
                link.close()
            if checksum_of(bytes(data)) == entries[number].check:
                return bytes(data)
            reason = "its checksum is another"
        except (OSError, ValueError, CordeeError) as error:
            reason = str(error)
    raise DataError(f"the manifest of {remote.name or 'the store'} did not come ({reason}): try again")


def read_manifest(raw: bytes) -> Manifest:
    """What the bytes of a manifest say."""
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except ValueError as error:
        raise DataError(f"the store's manifest cannot be read: {error}; is it of another version of Cordée?") from error
    try:
        check_manifest(manifest)
    except DataError as error:
        raise DataError(f"what the holder has is no store: {error.message}; build it there again") from None
    return manifest


def checksum_of(raw: bytes) -> str:
    """As an entry of a list has it."""
    check = Checksum("sha256:")
    check.add(raw)
    return check.text


def shards_of(raw: bytes) -> list[list[Entry]]:
    """The files of each shard."""
    found = [
        [Entry(f"{shard.folder}/{file.name}", file.size, f"crc32:{file.crc:08x}") for file in shard.files]
        for shards in read_manifest(raw).sets.values()
        for shard in shards
    ]
    try:
        check_entries([entry for shard in found for entry in shard])
    except ValueError as error:
        raise DataError(f"the store's manifest cannot be used: {error}") from error
    return found


def size_of(raw: bytes) -> int:
    """The bytes of a store, with its manifest."""
    return len(raw) + sum(entry.size for shard in shards_of(raw) for entry in shard)
