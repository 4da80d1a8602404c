"""The different values of a column: which there are, and where among them an entry is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.feed.columns import Column, Ragged, taken
from cordee.feed.permute import Ids
from cordee.feed.steps.origin import words_of

Value = str | int | float | bool
Values = dict[Value, int] | None
"""How often each value comes; None: there are more than may be."""


def missing(column: Column) -> NDArray[np.bool_]:
    """Which entries have no value: empty texts, NaN."""
    if isinstance(column, Ragged):
        empty: NDArray[np.bool_] = np.diff(column.offsets) == 0
        return empty
    return np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), np.bool_)


def values_of(column: Column, most: int) -> Values:
    """The values of some rows; missing ones are left out."""
    there = np.flatnonzero(~missing(column))
    words, first, counts = np.unique(words_of(taken(column, there)), return_index=True, return_counts=True)
    if len(words) > most:
        return None
    return dict(zip(taken(column, there[first]).tolist(), counts.tolist(), strict=True))


def merge_values(one: Values, other: Values, most: int) -> Values:
    """Of the rows of both."""
    if one is None or other is None:
        return None
    merged = dict(one)
    for value, count in other.items():
        merged[value] = merged.get(value, 0) + count
    return merged if len(merged) <= most else None


def in_order(values: Any) -> tuple[Value, ...]:
    """Numbers by size, texts by their letters."""
    return tuple(sorted(values))


def column_of(values: tuple[Value, ...]) -> Column:
    """The values as a column."""
    if values and isinstance(values[0], str):
        return Ragged.of(values)
    large = any(isinstance(one, int) and one >= 2**63 for one in values)
    return np.asarray(values, np.uint64 if large else None)


def places_in(values: tuple[Value, ...], column: Column) -> Ids:
    """For each entry the place of its value; -1 for one that is not among them, or is missing."""
    known = words_of(column_of(values))
    order = np.argsort(known)
    words = words_of(column)
    at = np.searchsorted(known[order], words)
    found = order[np.minimum(at, len(known) - 1)]
    places: Ids = np.where((known[found] == words) & ~missing(column), found, -1).astype(np.int64)
    return places
