"""What changes rows on their way from raw files to the store: the interfaces that every step has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cordee.feed.columns import Columns, Schema, rows_of

TRAIN, VALIDATION, TEST = 0, 1, 2
"""Which set a row belongs to."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a chain, and what is known of each beside its columns."""

    columns: Columns
    origins: NDArray[np.uint64]
    """Drawn from the file's key and the row's number in it: the same however the rows were cut into chunks, and on any
    host. What is random about a row (its set, whether it is sampled) is a function of seed and origin."""
    sets: NDArray[np.uint8]
    """`TRAIN`, `VALIDATION` or `TEST`."""

    def __len__(self) -> int:
        """How many rows there are."""
        return rows_of(self.columns) if self.columns else len(self.origins)


@runtime_checkable
class Step(Protocol):
    """One step of a chain: a frozen value. Processes of a build are sent it."""

    @property
    def key(self) -> str:
        """A text that differs between two steps that would make different rows of the same ones."""
        ...

    def schema(self, schema: Schema) -> Schema:
        """The columns after it; `DataError` for columns that it cannot do with, with what there is."""
        ...

    def apply(self, rows: Rows) -> Rows:
        """The rows after it: more, fewer or as many. Row by row: how they are cut into chunks makes no difference."""
        ...


@runtime_checkable
class Fitting(Protocol):
    """A step that first looks at all rows of the training set, and is an ordinary `Step` after that.

    Its statistics are gathered in parts, by several processes, and put together: `of` and `merge` may be called in any
    order, and give the same result up to rounding. A chain that holds one is not built before `fitted` was called.
    """

    @property
    def key(self) -> str:
        """As of a `Step`."""
        ...

    def schema(self, schema: Schema) -> Schema:
        """The columns after it, as far as they are known before it was fitted."""
        ...

    def of(self, columns: Columns) -> Any:
        """Statistics of some rows, all of the training set."""
        ...

    def merge(self, one: Any, other: Any) -> Any:
        """Statistics of the rows of both, which are not used any more: they may be changed."""
        ...

    def fitted(self, statistics: Any) -> Step:
        """The step that goes by them; `DataError` where they are of no use (no row at all, too many values)."""
        ...
