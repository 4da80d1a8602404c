"""A reader of rows that lie in this process, and plain ways to look at the sets of a chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cordee.feed.chain import Chain
from cordee.feed.columns import Columns, Ragged, Schema, kind_of_column, rows_of, slice_of
from cordee.feed.places import Place
from cordee.feed.source import digest_of
from cordee.feed.sources.seam import Chunk


@dataclass(frozen=True)
class Tables:
    """Reads files that are dicts of columns, in chunks of a few rows."""

    files: Mapping[str, Columns]
    size: int = 7
    key: str = "tables"
    endings: tuple[str, ...] = ()
    in_process: bool = True

    def schema(self, places: Sequence[Place]) -> Schema:
        return {name: kind_of_column(column) for name, column in self.files[places[0].key].items()}

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        columns = self.files[place.key]
        for first in range(start, rows_of(columns), self.size):
            last = min(first + self.size, rows_of(columns))
            yield Chunk({name: slice_of(columns[name], first, last) for name in schema}, last - first, last)


def digest(given: Columns) -> str:
    """Of all values."""
    raw = [(name, *((one.offsets, one.values) if isinstance(one, Ragged) else (one,))) for name, one in given.items()]
    return digest_of(part.encode() if isinstance(part, str) else part for one in raw for part in one)


def columns(**given: Any) -> Columns:
    """Columns of lists: texts where they hold texts."""
    texts = {name: any(isinstance(one, str) for one in value) for name, value in given.items()}
    return {name: Ragged.of(one) if texts[name] else np.asarray(one) for name, one in given.items()}


def chain(label: Any = None, *, chunk: int = 7, **given: Any) -> Chain:
    """A chain of one file with these columns."""
    return files({"rows": columns(**given)}, label, chunk=chunk)


def files(tables: Mapping[str, Columns], label: Any = None, *, chunk: int = 7) -> Chain:
    """A chain of several files."""
    places = tuple(Place(key, key, 1, digest(one)) for key, one in tables.items())
    return Chain(Tables(tables, chunk), places, label=label)


def whole(source: Any) -> dict[str, np.ndarray]:
    """All rows of a set."""
    fields = source.gather(np.arange(len(source)))
    return {name: one.numpy() for name, one in fields.items()}
