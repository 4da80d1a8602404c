"""What tests of readers share: places of files, and all rows that a reader gives of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cordee.feed.columns import Columns, joined
from cordee.feed.places import Place


def place_of(path: Path, root: Path | None = None) -> Place:
    """One file, with its path below `root` (its own folder) as its key."""
    found = path.stat()
    return Place(str(path), str(path.relative_to(root or path.parent)), found.st_size, str(found.st_mtime_ns))


def places_below(root: Path) -> tuple[Place, ...]:
    """All files there, sorted."""
    return tuple(place_of(path, root) for path in sorted(root.rglob("*")) if path.is_file())


def read(reader: Any, *paths: Path, start: int = 0) -> Columns:
    """All rows of these files, the first of them from `start` on."""
    places = [place_of(path) for path in paths]
    return read_places(reader, places, start=start)


def read_places(reader: Any, places: Sequence[Place], start: int = 0) -> Columns:
    """The same of places."""
    schema = reader.schema(places)
    chunks = []
    for number, place in enumerate(places):
        at = start if not number else 0
        for chunk in reader.chunks(place, schema, at):
            assert all(len(column) == chunk.rows for column in chunk.columns.values())
            assert at < chunk.next
            at = chunk.next
            chunks.append(chunk.columns)
        assert list(reader.chunks(place, schema, at)) == []
    return {name: joined([columns[name] for columns in chunks]) for name in schema}
