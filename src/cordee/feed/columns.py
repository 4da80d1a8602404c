"""Rows in columns: what readers of files give, steps of a chain change, and the store keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.permute import Ids

TEXT = "text"
"""The type of entries that are text, in UTF-8; a missing one is empty."""


@dataclass(frozen=True)
class Kind:
    """What the entries of a column are."""

    dtype: str
    """NumPy's name of the type of their numbers (`float32`, `uint8`), or `text`."""
    shape: tuple[int, ...] = ()
    """Of one entry, where all have the same."""
    ragged: bool = False
    """Whether entries are lists of numbers of any length. Texts are so too, of bytes."""
    raw: str = field(default="", compare=False, repr=False)
    """For the reader that gave it: what its files hold where that is not plain from the type (`timestamp[s]`)."""

    def __str__(self) -> str:
        """As people read it: `float32`, `uint8 (28, 28)`, `int64 (any length)`."""
        if self.ragged:
            return f"{self.dtype} (any length)"
        return f"{self.dtype} {self.shape}" if self.shape else self.dtype


class Ragged:
    """Entries of any length: the numbers of all of them one after the other, and where each begins."""

    __slots__ = ("different", "offsets", "text", "values")

    def __init__(
        self,
        offsets: NDArray[np.int64],
        values: NDArray[Any],
        *,
        text: bool = False,
        different: Sequence[bytes] | None = None,
    ) -> None:
        """Entry i is `values[offsets[i] : offsets[i + 1]]`; texts are bytes of UTF-8.

        `different`: each of the texts once, where a reader knows them without looking at all entries.
        """
        self.offsets, self.values, self.text, self.different = offsets, values, text, different

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> Ragged:
        """Entries `start` to `stop`, without a copy of their values."""
        offsets = self.offsets[start : stop + 1]
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        return Ragged(offsets - first, self.values[first:last], text=self.text)

    def take(self, ids: Ids) -> Ragged:
        """The entries `ids`, in this order."""
        starts, lengths = self.offsets[ids], np.diff(self.offsets)[ids]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(offsets, self.values[places], text=self.text)

    def tolist(self) -> list[Any]:
        """The entries: texts as `str`, others as arrays."""
        edges = self.offsets.tolist()
        if not self.text:
            return [self.values[start:stop] for start, stop in pairwise(edges)]
        whole = self.values.tobytes()
        return [whole[start:stop].decode() for start, stop in pairwise(edges)]

    @staticmethod
    def of(entries: Sequence[Any]) -> Ragged:
        """Of texts (`str` or `bytes`; None is the empty one), or of lists of numbers."""
        text = all(one is None or isinstance(one, str | bytes) for one in entries)
        if text:
            raw = [b"" if one is None else one.encode() if isinstance(one, str) else one for one in entries]
            parts = [np.frombuffer(one, np.uint8) for one in raw]
        else:
            parts = [np.asarray(one) for one in entries]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        values = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        return Ragged(offsets, values, text=text)


Column = NDArray[Any] | Ragged
"""One row per sample."""
Columns = dict[str, Column]
Schema = dict[str, Kind]


def kind_of_column(column: Column) -> Kind:
    """What its entries are."""
    if isinstance(column, Ragged):
        return Kind(TEXT, ragged=True) if column.text else Kind(column.values.dtype.name, ragged=True)
    return Kind(column.dtype.name, tuple(column.shape[1:]))


def rows_of(columns: Mapping[str, Column]) -> int:
    """How many rows they have."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        given = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise DataError(f"columns differ in length ({given}): each needs one row per sample")
    return next(iter(lengths.values()), 0)


def slice_of(column: Column, start: int, stop: int) -> Column:
    """Rows `start` to `stop`, without a copy."""
    return column.slice(start, stop) if isinstance(column, Ragged) else column[start:stop]


def taken(column: Column, ids: Ids) -> Column:
    """The rows `ids`, in this order."""
    return column.take(ids) if isinstance(column, Ragged) else column.take(ids, axis=0)


def joined(columns: Sequence[Column]) -> Column:
    """The rows of several columns of one kind, one after the other."""
    if len(columns) == 1:
        return columns[0]
    if not isinstance(columns[0], Ragged):
        return np.concatenate([np.asarray(one) for one in columns])
    ragged = [one for one in columns if isinstance(one, Ragged)]
    lengths = np.concatenate([np.diff(one.offsets) for one in ragged])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = np.concatenate([one.values[int(one.offsets[0]) : int(one.offsets[-1])] for one in ragged])
    return Ragged(offsets, values, text=ragged[0].text)
