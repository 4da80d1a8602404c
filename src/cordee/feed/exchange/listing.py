"""What is sent: the files of a folder, each with its size and checksum; and what a list from elsewhere may name."""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from cordee.core.errors import DataError

PART = ".cordee-part-"
"""How names of files begin that have not come whole yet; such files are not sent."""
MOST_FILES = 1_000_000
MOST_BYTES = 1 << 50
MANIFEST = "manifest.json"
"""Of a store, which is whole if it has one: sent last."""
BLOCK = 1 << 20
"""Bytes that are read, sent and written at once."""
_CHECK = re.compile(r"crc32:[0-9a-f]{8}|sha256:[0-9a-f]{64}")


class Entry(msgspec.Struct, frozen=True):
    """One file."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    """Below the folder, with `/` between names."""
    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
    check: Annotated[str, msgspec.Meta(max_length=80)]
    """`crc32:` or `sha256:` and the checksum of the whole file, as small hex digits."""


class Checksum:
    """Of a file's bytes, as they come."""

    def __init__(self, check: str) -> None:
        """Of the kind of `check`, which is what it has to be at the end."""
        self._check = check
        self._crc = 0
        self._sha = hashlib.sha256() if check.startswith("sha256") else None

    def add(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        if self._sha is not None:
            self._sha.update(data)
        else:
            self._crc = zlib.crc32(data, self._crc)

    @property
    def text(self) -> str:
        """As an `Entry` has it."""
        return f"sha256:{self._sha.hexdigest()}" if self._sha is not None else f"crc32:{self._crc:08x}"

    @property
    def agrees(self) -> bool:
        """Whether it is what it has to be."""
        return self.text == self._check


def is_name(text: str) -> bool:
    """Whether it can only be the name of something within a folder."""
    return (
        bool(text) and text not in (".", "..") and text.isprintable() and "/" not in text and len(text.encode()) < 256
    )


def check_entries(entries: Sequence[Entry]) -> None:
    """`ValueError` for paths that lead elsewhere, come twice or lie within each other, and checksums that are none."""
    if len(entries) > MOST_FILES:
        raise ValueError(f"{len(entries)} files, where at most {MOST_FILES} were expected")
    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        names = entry.path.split("/")
        if not all(map(is_name, names)) or any(name.startswith(PART) for name in names):
            raise ValueError(f"the path {entry.path!r} does not stay within a folder")
        if not _CHECK.fullmatch(entry.check):
            raise ValueError(f"{entry.path!r} has no checksum that is known here")
        if entry.path in files:
            raise ValueError(f"{entry.path!r} comes twice")
        files.add(entry.path)
        folders.update("/".join(names[:depth]) for depth in range(1, len(names)))
    if both := files & folders:
        raise ValueError(f"{min(both)!r} is a file and a folder")


def entries_of(path: Path, tell: Callable[[str], None] = lambda text: None) -> list[Entry]:
    """The files of a folder, or this one file; a store's checksums are taken from its manifest, others read."""
    if path.is_file():
        return [checked_entry(path, path.name)]
    if not path.is_dir():
        raise DataError(f"there is no folder or file {path.absolute()}: give the path of what is to be sent")
    if known := known_checksums(path / MANIFEST):
        for name, entry in known.items():
            check_there(path / name, entry)
        found = [*known.values(), checked_entry(path / MANIFEST, MANIFEST)]
    else:
        found = []
        names = sorted(_names(path))
        for number, name in enumerate(names):
            if number % 1000 == 999:
                tell(f"looking at file {number + 1:,} of {len(names):,}")
            found.append(checked_entry(path / name, name))
    if not found:
        raise DataError(f"{path.absolute()} holds no file: there is nothing to send")
    try:
        check_entries(found)
    except ValueError as error:
        raise DataError(f"{path.absolute()} cannot be sent: {error}; rename it") from error
    return sorted(found, key=lambda one: (one.path == MANIFEST, one.path))


def check_there(path: Path, entry: Entry) -> None:
    """`DataError` if a store's file is not there, or has not the size that the manifest says."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}, which the store's manifest names, cannot be read: {error.strerror}") from error
    if size != entry.size:
        raise DataError(
            f"{path} has {size} bytes, but the store's manifest says {entry.size}: the store is damaged, build it again"
        )


def known_checksums(manifest: Path) -> dict[str, Entry]:
    """The files that a store's manifest names, by their paths; empty if it is none."""
    from cordee.feed.store.layout import Manifest

    try:
        read = msgspec.json.decode(manifest.read_bytes(), type=Manifest)
    except (OSError, ValueError):
        return {}
    entries = (
        Entry(f"{shard.folder}/{file.name}", file.size, f"crc32:{file.crc:08x}")
        for shards in read.sets.values()
        for shard in shards
        for file in shard.files
    )
    return {entry.path: entry for entry in entries}


def _names(folder: Path) -> Iterable[str]:
    for where, folders, files in os.walk(folder):
        here = Path(where)
        for name in folders:
            if (here / name).is_symlink():
                raise DataError(
                    f"{here / name} is a link to a folder, which is not followed: put the files themselves in its place"
                )
        for name in files:
            if not name.startswith(".cordee-") and (here / name).is_file():
                yield (here / name).relative_to(folder).as_posix()


def checked_entry(path: Path, name: str) -> Entry:
    """A file with the checksum of its bytes."""
    check = Checksum("sha256:")
    size = 0
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                check.add(block)
                size += len(block)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return Entry(name, size, check.text)
