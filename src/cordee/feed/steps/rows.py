"""Steps that change, choose or multiply rows, or choose columns."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.columns import Kind, Schema, kind_of_column, taken
from cordee.feed.permute import Ids
from cordee.feed.steps.base import Written, present
from cordee.feed.steps.origin import children_of, draws_of
from cordee.feed.steps.seam import TRAIN, Rows
from cordee.feed.steps.user import Function, columns_of_rows, fitted_to, given, returned, rows_in

Kinds = tuple[tuple[str, Kind], ...]


class Map(Written, frozen=True, tag="map"):
    """Columns become others, by a function of the user's."""

    function: Function
    by_row: bool = False
    gives: Kinds | None = None
    """The columns that it gives, as the first rows showed them."""

    def on(self, schema: Schema, sample: Rows) -> Map:
        """The step, once it was seen which columns it makes of some rows."""
        return msgspec.structs.replace(self, gives=_kinds(self.apply(sample)))

    def schema(self, schema: Schema) -> Schema:
        """The columns that the function gives."""
        return dict(self.gives or ())

    def apply(self, rows: Rows) -> Rows:
        """The function's columns."""
        called = f"map({self.function.name})"
        if self.gives is not None and not len(rows):
            columns = columns_of_rows(called, [], self.gives)
        elif self.by_row:
            made = [self.function.run("map", row) for row in rows_in(rows.columns)]
            columns = columns_of_rows(called, made, self.gives or ())
        else:
            columns = returned(called, self.function.run("map", given(rows.columns)), len(rows))
        if self.gives is not None:
            columns = fitted_to(called, columns, self.gives)
        return replace(rows, columns=columns)


class FlatMap(Written, frozen=True, tag="flat_map"):
    """Several rows of one, or none, by a function of the user's."""

    function: Function
    gives: Kinds | None = None

    def on(self, schema: Schema, sample: Rows) -> FlatMap:
        """The step, once it was seen which columns it makes of some rows."""
        return msgspec.structs.replace(self, gives=_kinds(self.apply(sample)))

    def schema(self, schema: Schema) -> Schema:
        """The columns of the rows that the function gives."""
        return dict(self.gives or ())

    def apply(self, rows: Rows) -> Rows:
        """The rows made of each, one after the other; they are in its set."""
        called = f"flat_map({self.function.name})"
        made = [self.function.run("flat_map", row) for row in rows_in(rows.columns)]
        if strange := next((one for one in made if isinstance(one, str | dict) or not hasattr(one, "__iter__")), None):
            raise DataError(f"{called}: the function gave a {type(strange).__name__}; a list of rows was expected")
        lists = [list(one) for one in made]
        counts = np.array([len(one) for one in lists], dtype=np.int64)
        columns = columns_of_rows(called, [row for one in lists for row in one], self.gives or ())
        if self.gives is not None:
            columns = fitted_to(called, columns, self.gives)
        return replace(repeated(rows, counts), columns=columns)


class Filter(Written, frozen=True, tag="filter"):
    """Only some rows, as a function of the user's says."""

    function: Function
    by_row: bool = False

    def schema(self, schema: Schema) -> Schema:
        """The same columns."""
        return schema

    def apply(self, rows: Rows) -> Rows:
        """The rows for which the function gives true."""
        called = f"filter({self.function.name})"
        if not len(rows):
            return rows
        if self.by_row:
            return chosen_rows(
                rows, np.array([bool(self.function.run("filter", row)) for row in rows_in(rows.columns)], dtype=bool)
            )
        mask = np.asarray(self.function.run("filter", given(rows.columns)))
        if mask.shape != (len(rows),) or mask.dtype.kind != "b":
            raise DataError(
                f"{called}: the function gave {mask.dtype} of shape {mask.shape}; a boolean for each of {len(rows)} "
                "rows was expected, for instance columns['age'] > 18 (rows=True gives it one row at a time)"
            )
        return chosen_rows(rows, mask)


class Sample(Written, frozen=True, tag="sample"):
    """Some rows drawn at random, by their origin. No row comes twice in an evaluation."""

    fraction: float
    replacement: bool = False
    """How often each comes is drawn from a Poisson distribution of this mean."""
    seed: int = 0
    training: bool = False
    """Of the training set alone; the other sets stay as they are."""

    def schema(self, schema: Schema) -> Schema:
        """The same columns."""
        return schema

    def apply(self, rows: Rows) -> Rows:
        """The rows that were drawn, each as often as that."""
        draws = draws_of(rows.origins, "sample of rows", self.seed)
        others = rows.sets != TRAIN
        if not self.replacement:
            return chosen_rows(rows, (draws < self.fraction) | (others & self.training))
        counts, term = np.zeros(len(rows), np.int64), np.exp(-self.fraction)
        total = term
        for times in range(1, 200):  # the inverse of the distribution: its first 200 terms are all of it
            counts += draws >= total
            term = term * self.fraction / times
            total = total + term
        counts[others] = 1 if self.training else np.minimum(counts[others], 1)
        return repeated(rows, counts)


class Select(Written, frozen=True, tag="select"):
    """Only these columns, in this order."""

    columns: tuple[str, ...]

    def schema(self, schema: Schema) -> Schema:
        """These columns."""
        return {name: present("select", schema, name) for name in self.columns}

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        return replace(rows, columns={name: rows.columns[name] for name in self.columns})


class Drop(Written, frozen=True, tag="drop"):
    """All but these columns."""

    columns: tuple[str, ...]

    def schema(self, schema: Schema) -> Schema:
        """The others."""
        for name in self.columns:
            present("drop", schema, name)
        return {name: kind for name, kind in schema.items() if name not in self.columns}

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        dropped = set(self.columns)
        left = {name: column for name, column in rows.columns.items() if name not in dropped}
        return replace(rows, columns=left)


class Rename(Written, frozen=True, tag="rename"):
    """Columns by other names."""

    names: tuple[tuple[str, str], ...]
    """Old and new."""

    def schema(self, schema: Schema) -> Schema:
        """The columns at their places."""
        for old, _ in self.names:
            present("rename", schema, old)
        new = [self._new(name) for name in schema]
        if twice := next((name for name in new if new.count(name) > 1), None):
            raise DataError(f"rename: two columns would be called {twice!r}; drop one of them first")
        return dict(zip(new, schema.values(), strict=True))

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        return replace(rows, columns={self._new(name): column for name, column in rows.columns.items()})

    def _new(self, name: str) -> str:
        return dict(self.names).get(name, name)


def chosen_rows(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    """The rows where the mask is true."""
    return rows if mask.all() else _at(rows, np.flatnonzero(mask))


def repeated(rows: Rows, counts: NDArray[np.int64]) -> Rows:
    """Each row so many times; the first time with its own origin."""
    ids = np.repeat(np.arange(len(rows), dtype=np.int64), counts)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    chosen = _at(rows, ids)
    return replace(chosen, origins=children_of(chosen.origins, np.arange(len(ids)) - starts))


def _at(rows: Rows, ids: Ids) -> Rows:
    columns = {name: taken(column, ids) for name, column in rows.columns.items()}
    return Rows(columns, rows.origins[ids], rows.sets[ids])


def _kinds(rows: Rows) -> Kinds:
    return tuple((name, kind_of_column(column)) for name, column in rows.columns.items())
