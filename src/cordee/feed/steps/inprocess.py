"""A chain's rows made in this process, chunk by chunk: for few rows, and to look at the first ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cordee.feed.columns import Columns, Schema, joined, rows_of, slice_of
from cordee.feed.places import Place
from cordee.feed.sources.seam import Reader
from cordee.feed.steps.fit import applied
from cordee.feed.steps.origin import origins_of
from cordee.feed.steps.rows import chosen_rows
from cordee.feed.steps.seam import TRAIN, Fitting, Rows, Step
from cordee.feed.steps.split import Split
from cordee.feed.steps.user import empty


def raw_rows(reader: Reader, places: Sequence[Place], schema: Schema, split: Split | None = None) -> Iterator[Rows]:
    """The rows of all files as they are read, with their origins and sets."""
    for place in places:
        first = 0
        for chunk in reader.chunks(place, schema):
            origins = origins_of(place.identity, first, chunk.rows)
            sets = np.full(chunk.rows, TRAIN, np.uint8)
            if split is not None:
                sets = split.sets(place, chunk.columns, origins)
            yield Rows(chunk.columns, origins, sets)
            first += chunk.rows


def blocks_of(rows: Iterator[Rows], schema: Schema, least: int) -> Iterator[Rows]:
    """All rows, at least so many at a time; the first block has no more, as it is most often enough."""
    parts: list[Rows] = []
    first = True
    for one in rows:
        parts.append(one)
        total = sum(map(len, parts))
        if first and total >= least:
            yield cut_rows(joined_rows(parts, schema), 0, least)
            cut = len(one) - (total - least)
            parts, first = [cut_rows(one, cut, len(one))], False
        elif total >= least:
            yield joined_rows(parts, schema)
            parts = []
    if parts:
        yield joined_rows(parts, schema)


def joined_rows(parts: Sequence[Rows], schema: Schema) -> Rows:
    """All of these rows, one after the other."""
    some = [one for one in parts if len(one)]
    if not some:
        return Rows({name: empty(kind) for name, kind in schema.items()}, np.zeros(0, np.uint64), np.zeros(0, np.uint8))
    columns = {name: joined([one.columns[name] for one in some]) for name in some[0].columns}
    return Rows(columns, np.concatenate([one.origins for one in some]), np.concatenate([one.sets for one in some]))


def cut_rows(rows: Rows, start: int, stop: int) -> Rows:
    """Rows `start` to `stop`, without a copy."""
    columns = {name: slice_of(column, start, stop) for name, column in rows.columns.items()}
    return Rows(columns, rows.origins[start:stop], rows.sets[start:stop])


def statistics_of(rows: Iterator[Rows], steps: Sequence[Step], fittings: Sequence[Fitting]) -> list[Any]:
    """What the fittings gather over the rows of the training set, as they are behind these steps."""
    totals: list[Any] = []
    for one in rows:
        columns = training_columns(applied(steps, one))
        if rows_of(columns) or not totals:
            found = [fitting.of(columns) for fitting in fittings]
            pairs = zip(fittings, totals, found, strict=False)
            totals = [fitting.merge(*both) for fitting, *both in pairs] if totals else found
    return totals


def training_columns(rows: Rows) -> Columns:
    """The columns of those rows that are in the training set."""
    return chosen_rows(rows, rows.sets == TRAIN).columns
