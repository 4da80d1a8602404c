"""What a column holds, in a few numbers: gathered in parts, while rows are written, and put together."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cordee.feed.columns import Column, Ragged, taken

MOST_DISTINCT = 1_000
"""Up to so many different texts are counted."""
_LOOKED_AT = 256
"""Bytes of texts that are compared, on average."""
_PIECE = 131_072
"""Numbers at a time: they stay in a core's cache."""
_ROW = 512
"""Numbers that are added up in their own type."""
_TINY = 1e-25
_BOUNDED = 2**18
"""Bytes at a time where bounds alone are wanted."""
WIDE, _ONE_IN = 16, np.uint64(16)
"""Of entries with more numbers than that, mean and standard deviation are of one in so many."""


class Summary(msgspec.Struct):
    """Of one column."""

    count: int = 0
    """Entries."""
    missing: int = 0
    """NaN, or empty texts."""
    infinite: int = 0
    least: float | int | None = None
    most: float | int | None = None
    seen: int = 0
    """Finite numbers that the following are of."""
    mean: float = 0.0
    squares: float = 0.0
    """Of the distances to the mean, added up."""
    longest: int | None = None
    """Numbers or bytes of the longest entry, where entries are of any length."""
    texts: tuple[bytes, ...] | None = ()
    """Different texts; None: too many."""
    examined: int = 0
    """Entries that mean and squares are of."""

    def describe(self) -> dict[str, Any]:
        """As the manifest has it."""
        told: dict[str, Any] = {"count": self.count, "missing": self.missing}
        if self.infinite:
            told["infinite"] = self.infinite
        if self.least is not None:
            told |= {"least": self.least, "most": self.most}
        if self.seen:
            told |= {"mean": self.mean, "std": (max(0.0, self.squares) / self.seen) ** 0.5}
            if self.examined < self.count:
                told["mean_of_rows"] = self.examined
        if self.longest is not None:
            told["longest"] = self.longest
        if self.texts is None or self.texts:
            told["distinct"] = f"more than {MOST_DISTINCT}" if self.texts is None else len(self.texts)
        return told


def summary_of(column: Column, origins: NDArray[np.uint64]) -> Summary:
    """Of some rows. Mean and deviation of wide entries are of a part of them, which depends on their origin alone."""
    if isinstance(column, Ragged):
        lengths = np.diff(column.offsets)
        longest = int(lengths.max()) if len(lengths) else 0
        if column.text:
            return Summary(len(column), int(np.count_nonzero(lengths == 0)), longest=longest, texts=_texts(column))
        values = column.values[int(column.offsets[0]) : int(column.offsets[-1])]
        summary = _of_numbers(values)
        summary.count = summary.examined = len(column)
        summary.longest = longest
        return summary
    if column.size > WIDE * len(column):
        some = np.flatnonzero(origins % _ONE_IN == 0) if len(origins) == len(column) else np.arange(1)
        rows = taken(column, some if len(some) else np.arange(1))
        assert not isinstance(rows, Ragged)
        summary, whole = _of_numbers(rows), _bounds_of(column)
        summary.missing, summary.infinite = whole.missing, whole.infinite
        summary.least, summary.most, summary.examined = whole.least, whole.most, len(rows)
    else:
        summary = _of_numbers(column)
        summary.examined = len(column)
    summary.count = len(column)
    return summary


def merged(one: Summary, other: Summary) -> Summary:
    """Of the rows of both."""
    seen = one.seen + other.seen
    texts = one.texts
    if texts != other.texts:
        texts = None if texts is None or other.texts is None else tuple(dict.fromkeys([*texts, *other.texts]))
    both = Summary(one.count + other.count, one.missing + other.missing, one.infinite + other.infinite)
    both.seen, both.examined = seen, one.examined + other.examined
    both.texts = None if texts is None or len(texts) > MOST_DISTINCT else texts
    both.longest = _of_both(max, one.longest, other.longest)
    both.least = _of_both(min, one.least, other.least)
    both.most = _of_both(max, one.most, other.most)
    if seen:
        apart = other.mean - one.mean
        both.mean = one.mean + apart * (other.seen / seen)
        both.squares = one.squares + other.squares + apart * apart * (one.seen * (other.seen / seen))
    return both


def _of_both(choose: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else choose(one, other)


def _of_numbers(column: NDArray[Any]) -> Summary:
    """Sums are of distances to one of the numbers: squares of large ones would swallow what sets them apart."""
    whole, pivot, total, squares = Summary(), np.float64(0), 0.0, 0.0
    buffer = np.empty(min(column.size, _PIECE))
    with np.errstate(over="ignore", invalid="ignore"):
        for piece in _pieces(column, _PIECE):
            finite = _bound(whole, piece)
            if not len(finite):
                continue
            pivot = pivot if whole.seen else np.float64(finite[0])
            of_piece = _sums(finite, pivot, buffer)
            total, squares = total + of_piece[0], squares + of_piece[1]
            whole.seen += len(finite)
        if whole.seen and math.isfinite(squares):  # not of numbers near the largest that there are
            whole.mean = float(pivot + total / whole.seen)
            whole.squares = max(0.0, squares - total / whole.seen * total)
    return whole


def _sums(numbers: NDArray[Any], pivot: np.float64, buffer: NDArray[np.float64]) -> tuple[float, float]:
    """Of the distances to the pivot, and of their squares.

    Those of float32 in their own type, a few at a time, which takes half the time, unless they are huge or tiny.
    """
    if numbers.dtype == np.float32:
        short = buffer.view(np.float32)[: len(numbers)]
        total, squares = _added(np.subtract(numbers, np.float32(pivot), out=short))
        if _TINY < squares < math.inf:
            return total, squares
    return _added(np.subtract(numbers, pivot, out=buffer[: len(numbers)], dtype=np.float64))


def _added(apart: NDArray[Any]) -> tuple[float, float]:
    """All of them, and their squares; by so few at a time no thread of BLAS's begins, for which others would wait."""
    rows = apart[: len(apart) // _ROW * _ROW].reshape(-1, _ROW)
    rest = apart[rows.size :].astype(np.float64)
    total = np.einsum("ij->i", rows).sum(dtype=np.float64) + rest.sum()
    squares = np.matmul(rows[:, None, :], rows[:, :, None]).sum(dtype=np.float64) + (rest * rest).sum()
    return float(total), float(squares)


def _bounds_of(column: NDArray[Any]) -> Summary:
    """What is missing, the least and the most: a tenth of the time that the mean and the squares take."""
    whole = Summary()
    for piece in _pieces(column, _BOUNDED // column.itemsize):
        _bound(whole, piece)
    return whole


def _pieces(column: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    """So many numbers at a time; none of those that have no order."""
    flat = column.reshape(-1)
    if flat.dtype.kind == "b":
        flat = flat.view(np.uint8)
    for at in range(0, 0 if flat.dtype.kind == "c" else len(flat), size):
        yield flat[at : at + size]


def _bound(whole: Summary, piece: NDArray[Any]) -> NDArray[Any]:
    """Add what is missing in a piece, its least and its most; the finite numbers of it."""
    least, most = piece.min().item(), piece.max().item()
    if not (math.isfinite(least) and math.isfinite(most)):
        finite: NDArray[Any] = piece[np.isfinite(piece)]
        missing = int(np.isnan(piece).sum())
        whole.missing += missing
        whole.infinite += len(piece) - len(finite) - missing
        if not len(finite):
            return finite
        piece, least, most = finite, finite.min().item(), finite.max().item()
    whole.least, whole.most = _of_both(min, whole.least, least), _of_both(max, whole.most, most)
    return piece


def _texts(column: Ragged) -> tuple[bytes, ...] | None:
    """The different ones; None: more than are counted."""
    if column.different is not None:
        return tuple(column.different) if len(column.different) <= MOST_DISTINCT else None
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    if last - first > _LOOKED_AT * max(1, len(column)):
        return None
    arrow = sys.modules.get("pyarrow")  # ten times as fast as what follows, where a reader has it loaded already
    if arrow is not None:
        buffers = [None, *(arrow.py_buffer(np.ascontiguousarray(one)) for one in (column.offsets, column.values))]
        found = arrow.LargeBinaryArray.from_buffers(arrow.large_binary(), len(column), buffers).unique()
        return None if len(found) > MOST_DISTINCT else tuple(one for one in found.to_pylist() if one)
    whole, edges = column.values[first:last].tobytes(), (column.offsets - first).tolist()
    texts: dict[bytes, None] = {}
    for start, stop in pairwise(edges):
        texts[whole[start:stop]] = None
        if len(texts) > MOST_DISTINCT:
            return None
    return tuple(one for one in texts if one)
