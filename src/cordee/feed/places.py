"""Where raw data lies: files and objects, on this host or elsewhere. How what a user names becomes a list of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO
from urllib.parse import unquote

from cordee.core.errors import DataError
from cordee.feed.filesystem.find import absolute, base_of, filesystem_of, has_magic, hidden, matching
from cordee.feed.filesystem.seam import Entry, Filesystem, without_query

_SHOWN = 8
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Place:
    """One file or object."""

    url: str
    """An absolute path, or a URL such as `s3://bucket/key`."""
    key: str
    """Its path below what the user named: the same on each host, wherever that has the data."""
    size: int
    """In bytes."""
    mark: str
    """Changes when its bytes do: the time of the last change, or the tag that a server gives it."""
    origin: str = ""
    """What its rows are known by, if that is not `key`: the same as before files of equal names were named after it."""
    folders: tuple[tuple[str, str | None], ...] = ()
    """What the names of folders below what the user named say (`year=2024`); None for a missing value."""

    @property
    def stamp(self) -> str:
        """A text that differs when its rows may: all but where it lies."""
        told = "".join(f"{name}={value!r}\0" for name, value in self.folders)
        return f"{self.key}\0{self.size}\0{self.mark}\0" + (f"{self.origin}\0" if self.origin else "") + told

    @property
    def identity(self) -> str:
        """What a row's set and random draws are a function of, with the row's number."""
        return self.origin or self.key

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.key.rpartition("/")[2]

    @property
    def shown(self) -> str:
        """As messages name it: the URL without what may be secret in it."""
        return without_query(self.url)

    def open(self) -> BinaryIO:
        """For reading, at any offset. Far files are read ahead, in blocks of some MiB."""
        return filesystem_of(self.url).open(self.url, self.size, self.mark)


What = str | os.PathLike[str] | Place | Sequence[Any]
"""What a user names: a path, a URL, a pattern, a folder, or a list of these."""


def resolve(what: What, endings: Sequence[str] = ()) -> tuple[Place, ...]:
    """The files of a path, a URL, a pattern such as `data/*.csv`, a folder, or a list of these; at least one.

    Of a folder, at any depth and sorted by path, those files that end in one of `endings` (all if there are none);
    hidden ones (`.crc`) and such as `_SUCCESS` are left out. What is named itself, or by a pattern, is taken as it is.
    Files are known by their paths below what was named. Of several with the same one, those named later are known by
    more of their paths, so that rows of earlier ones keep their sets: append to a list at its end.
    """
    named = [what] if isinstance(what, str | os.PathLike | Place) else what
    if not isinstance(named, Iterable):
        raise DataError(f"{type(what).__name__} names no files: a path, a URL, a pattern, a folder or a list of these")
    places: list[Place] = []
    for one in named:
        if isinstance(one, Place):
            places.append(one)
        elif isinstance(one, str | os.PathLike) and isinstance(os.fspath(one), str) and os.fspath(one).strip():
            places += _found(os.fspath(one), endings)
        else:
            raise DataError(f"{one!r} names no file: a path, a URL, a pattern or a folder is needed")
    if not places:
        raise DataError("an empty list names no files: at least one is needed")
    return _distinct(places)


def _found(named: str, endings: Sequence[str]) -> list[Place]:
    url = absolute(named)
    files = filesystem_of(url)
    magic = has_magic(url)
    # A name may have the signs of a pattern in it: what is there is taken first.
    entry = None if magic and not url.startswith("/") else files.look(url)
    if entry is None and not magic:
        raise _nothing(files, url)
    if entry is not None:
        if entry.folder:
            return _of_folder(files, entry, entry.url, endings)
        return [_place(entry, entry.url.rpartition("/")[0] if not url.startswith("http") else "")]
    base = base_of(url)
    places = []
    for one in matching(files, url):
        places += _of_folder(files, one, base, endings) if one.folder else [_place(one, base)]
    if not places:
        raise _nothing(files, url)
    return sorted(places, key=lambda place: place.key)


def _of_folder(files: Filesystem, folder: Entry, base: str, endings: Sequence[str]) -> list[Place]:
    start = len(folder.url.rstrip("/")) + 1
    below = [one for one in files.below(folder.url) if not any(map(hidden, one.url[start:].split("/")))]
    wanted = [one for one in below if not endings or one.name.lower().endswith(tuple(endings))]
    if not wanted:
        there = f"it has {_kinds(below)}" if below else "it has no files that are not hidden"
        looked = f"no file below {folder.url} ends in {' or '.join(endings)}" if endings else f"{folder.url} is empty"
        advice = f"; if they are what you mean, name them by a pattern: {folder.url}/**" if below else ""
        raise DataError(f"{looked}: {there}{advice}")
    return sorted((_place(one, base) for one in wanted), key=lambda place: place.key)


def _place(entry: Entry, base: str) -> Place:
    key = entry.url[len(base.rstrip("/")) + 1 :] if base else entry.name
    return Place(entry.url, key, entry.size, entry.mark, folders=_told(key))


def _told(key: str) -> tuple[tuple[str, str | None], ...]:
    """Names and values in a path, as Hive and Spark write them: `year=2024/kind=a%2Fb/part.parquet`."""
    pairs = [one.partition("=") for one in key.split("/")[:-1] if not one.startswith("=") and "=" in one]
    return tuple((unquote(name), None if value == _NO_VALUE else unquote(value)) for name, _, value in pairs)


def _distinct(places: Sequence[Place]) -> tuple[Place, ...]:
    """With keys that differ: where two are the same, more of their paths is taken."""
    for url, count in Counter(place.url for place in places).items():
        if count > 1:
            raise DataError(f"{without_query(url)} is named {count} times: name each file once")
    named = list(places)
    while len(counts := Counter(place.key for place in named)) < len(named):
        named = [replace(one, key=_longer(one, one.key)) if counts[one.key] > 1 else one for one in named]
    return tuple(_identified(places, named))


def _identified(places: Sequence[Place], named: Sequence[Place]) -> Iterator[Place]:
    """Each known by its first key, if no place before it is: those that follow change nothing for it."""
    taken: set[str] = set()
    for first, place in zip(places, named, strict=True):
        identity = first.identity
        while identity in taken:
            identity = _longer(first, identity)
        taken.add(identity)
        yield replace(place, origin="" if identity == place.key else identity)


def _longer(place: Place, key: str) -> str:
    """A key with one more part of the path in it."""
    parts = place.shown.partition("://")[2].split("/") if "://" in place.url else place.url.split("/")
    wanted = key.count("/") + 2
    if wanted > len(parts):
        raise DataError(f"{place.shown} is named twice: name each file once")
    return "/".join(parts[-wanted:])


def _nothing(files: Filesystem, url: str) -> DataError:
    """What was looked for, and what is there instead."""
    pattern = has_magic(url)
    looked = f"nothing matches {url}" if pattern else f"there is no file or folder {without_query(url)}"
    if url.startswith("http"):
        return DataError(f"{looked}: the server does not have it (HTTP 404)")
    folder = base_of(url) if pattern else url.rpartition("/")[0]
    while folder.count("/") > (2 if "://" in folder else 0) and ((at := files.look(folder)) is None or not at.folder):
        folder = folder.rpartition("/")[0]
    there = sorted(one.name + "/" * one.folder for one in files.children(folder or "/"))
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    listed = f"holds {', '.join(there[:_SHOWN])}{more}" if there else "is empty"
    return DataError(f"{looked}: {folder or '/'} {listed}")


def _kinds(entries: Sequence[Entry]) -> str:
    """What files there are, by ending."""
    endings = Counter(os.path.splitext(one.name)[1] or "without an ending" for one in entries)
    most = sorted(endings.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count} {ending}" for ending, count in most[:_SHOWN])
