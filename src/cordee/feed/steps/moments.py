"""Statistics of columns of numbers, in parts that give the same result in any order: counts, means, spread, medians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.feed.columns import Column

Floats = NDArray[np.float64]
Moments = list[Floats]
"""Of each piece of rows an array (3, numbers per row): count, mean, sum of squared distances from it."""
Counts = tuple[Floats, NDArray[np.int64], bool]
"""Values in order, how often each comes, and whether they were rounded."""

MOST_VALUES = 2**20
"""So many different values are counted as they are; of more, those that agree in 13 bits count as one."""
_DROPPED = np.uint64(52 - 12)


def numbers(column: Column) -> Floats:
    """As float64, one line per row."""
    rows = np.asarray(column, dtype=np.float64)
    return rows.reshape(len(rows), -1)


def moments_of(column: Column) -> Moments:
    """Of some rows; missing values are left out."""
    values = numbers(column)
    there = ~np.isnan(values)
    count = there.sum(axis=0).astype(np.float64)
    least = np.maximum(count, 1)
    mean = np.where(there, values, 0.0).sum(axis=0) / least
    squares = np.where(there, (values - mean) ** 2, 0.0).sum(axis=0)
    return [np.stack([count, mean, squares])]


def mean_and_deviation(moments: Moments) -> tuple[Floats, Floats, Floats]:
    """Count, mean and standard deviation of all pieces. Sums are exact before they are rounded: their order is nothing.

    Where there is no value, the mean is NaN.
    """
    whole = np.stack(moments)  # (pieces, 3, numbers per row)
    counts, means, squares = whole[:, 0], whole[:, 1], whole[:, 2]
    total = counts.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = _sums(counts * means) / total
        spread = _sums(np.where(counts > 0, squares + counts * (means - mean) ** 2, 0.0)) / total
    return total, mean, np.sqrt(spread)


def _sums(terms: Floats) -> Floats:
    return np.array([_sum(column) for column in terms.T], dtype=np.float64)


def _sum(terms: Sequence[float]) -> float:
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):  # infinities, of both signs
        return math.nan


def bounds_of(column: Column) -> Floats:
    """Least and most of some rows, of shape (2, numbers per row); NaN where all are missing."""
    values = numbers(column)
    nothing = np.full(values.shape[1], np.nan)
    least = np.fmin.reduce(values, axis=0, initial=np.nan) if len(values) else nothing
    most = np.fmax.reduce(values, axis=0, initial=np.nan) if len(values) else nothing
    return np.stack([least, most])


def merge_bounds(one: Floats, other: Floats) -> Floats:
    """Of the rows of both."""
    return np.stack([np.fmin(one[0], other[0]), np.fmax(one[1], other[1])])


def counts_of(column: Column) -> Counts:
    """How often each value comes in some rows of one number."""
    values = numbers(column).ravel()
    return _few(*np.unique(values[~np.isnan(values)], return_counts=True), False)


def merge_counts(one: Counts, other: Counts) -> Counts:
    """Of the rows of both."""
    rounded = one[2] or other[2]
    values = np.concatenate([part[0] if part[2] == rounded else _rounded(part[0]) for part in (one, other)])
    found, where = np.unique(values, return_inverse=True)
    counts = np.zeros(len(found), np.int64)
    np.add.at(counts, where, np.concatenate([one[1], other[1]]))
    return _few(found, counts, rounded)


def median_of(counts: Counts) -> float:
    """The value in the middle, or between the two there; NaN where there is none."""
    values, often, _ = counts
    if not len(values):
        return math.nan
    ends = np.cumsum(often)
    middle = [int(np.searchsorted(ends, place, side="right")) for place in ((ends[-1] - 1) // 2, ends[-1] // 2)]
    return float(values[middle[0]] + values[middle[1]]) / 2


def _few(values: Floats, counts: NDArray[Any], rounded: bool) -> Counts:
    if len(values) <= MOST_VALUES or rounded:
        return values, counts.astype(np.int64), rounded
    return merge_counts((_rounded(values), counts, True), (np.zeros(0), np.zeros(0, np.int64), True))


def _rounded(values: Floats) -> Floats:
    """To 12 bits behind the first one: the same for a value wherever it is met."""
    rounded: Floats = ((values.view(np.uint64) >> _DROPPED) << _DROPPED).view(np.float64)
    return rounded
