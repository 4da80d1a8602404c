"""Rows of a store, read again by a chain that goes on from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cordee.feed.columns import Columns, Kind, Schema
from cordee.feed.permute import SPREAD, mix
from cordee.feed.places import Place
from cordee.feed.sources.seam import Chunk
from cordee.feed.steps.carried import ORIGIN
from cordee.feed.steps.seam import TRAIN
from cordee.feed.steps.split import GIVEN, NAMES
from cordee.feed.store.opened import Store, open_store

ROWS_AT_ONCE = 65_536
_MARK = "?rows="


@dataclass(frozen=True)
class Stored:
    """Reads stores that were cut off a chain: places are runs of rows of their sets."""

    endings: ClassVar[tuple[str, ...]] = ()
    in_process: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """The same for all stores: their places differ."""
        return "stored 1"

    def schema(self, places: Sequence[Place]) -> Schema:
        """The store's columns, and the set of a row."""
        return open_store(_path(places[0])).manifest.schema | {GIVEN: Kind("uint8")}

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The rows of one set in their order; a second copy of a row has an origin of its own."""
        source = open_store(_path(place)).sets[(name := place.key.split("/")[0])]
        first, last, copy = map(int, place.url.rpartition(_MARK)[2].split(","))
        for at in range(max(first, start), last, ROWS_AT_ONCE):
            stop = min(at + ROWS_AT_ONCE, last)
            found = source.rows(np.arange(at, stop))
            columns: Columns = {one: found[one] for one in schema if one in found}
            if copy and ORIGIN in columns:
                words = np.asarray(columns[ORIGIN]).view(np.uint64) + np.uint64(copy * int(SPREAD) % 2**64)
                columns[ORIGIN] = mix(words).view(np.int64)
            columns[GIVEN] = np.full(stop - at, NAMES[name], np.uint8)
            yield Chunk(columns, stop - at, stop)


def places_in(store: Store, most: int | None, times: int) -> tuple[Place, ...]:
    """All rows of a store, or `most` of them; the training set so many times."""
    counts = first_of({name: len(source) for name, source in store.sets.items()}, most)
    shards = [shard for one in store.manifest.sets.values() for shard in one]
    nbytes = sum(file.size for shard in shards for file in shard.files)
    total = sum(counts.values())
    return tuple(
        Place(
            f"{store.path}{_MARK}0,{count},{copy}",
            f"{name}/{copy}",
            nbytes * count // max(1, total),
            f"{store.manifest.key} {count}",
        )
        for name, count in counts.items()
        for copy in range(times if NAMES[name] == TRAIN else 1)
        if count
    )


def first_of(counts: dict[str, int], most: int | None) -> dict[str, int]:
    """How many rows of each set are its part of `most`; by largest remainders, at least one of each where it goes."""
    total = sum(counts.values())
    if most is None or most >= total:
        return counts
    exact = {name: most * count / total for name, count in counts.items()}
    parts = {name: int(one) for name, one in exact.items()}
    ranked = sorted(exact, key=lambda name: (parts[name] > 0, parts[name] - exact[name]))
    for name in ranked[: most - sum(parts.values())]:
        parts[name] += 1
    return parts


def _path(place: Place) -> str:
    return place.url.rpartition(_MARK)[0]
