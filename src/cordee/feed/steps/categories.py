"""Steps that make numbers of categories: one per value, class numbers, or places by a hash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from cordee.core.errors import DataError
from cordee.core.words import plural
from cordee.feed.columns import Columns, Kind, Ragged, Schema, taken
from cordee.feed.steps.base import TEXTS, UNKNOWN, Written, chosen, present, texts_or_numbers
from cordee.feed.steps.origin import words_of
from cordee.feed.steps.seam import Rows
from cordee.feed.steps.values import Value, in_order, merge_values, missing, places_in, values_of

Names = tuple[str, ...]
MOST_CATEGORIES = 1_000
"""That become a number each: more make rows of thousands of zeros."""
MOST_CLASSES = 10_000
LARGEST_HASH = 65_536
"""Numbers per row that a hash may make."""


class _Counting(Written, frozen=True):
    columns: Names = ()
    but: Names = ()
    limit: int = MOST_CATEGORIES

    @property
    def reads(self) -> Names:
        """The columns."""
        return self.columns

    @property
    def makes(self) -> Names:
        """The same ones."""
        return self.columns

    def of(self, columns: Columns) -> Any:
        """The values of each column."""
        return [values_of(columns[name], self.limit) for name in self.columns]

    def merge(self, one: Any, other: Any) -> Any:
        """Of both."""
        return [merge_values(first, second, self.limit) for first, second in zip(one, other, strict=True)]


class OneHot(_Counting, frozen=True, tag="one_hot"):
    """Each category of the training rows becomes a number, 1 where it is the row's."""

    def on(self, schema: Schema, sample: Rows) -> OneHot:
        """For these columns: those named, or all texts but the label."""
        fits = texts_or_numbers(schema) if self.columns else [name for name, kind in schema.items() if kind == TEXTS]
        what = "texts or single numbers" if self.columns else "texts"
        return msgspec.structs.replace(self, columns=chosen("one_hot", schema, self.columns, what, fits, self.but))

    def schema(self, schema: Schema) -> Schema:
        """The columns as so many numbers as there are categories."""
        return schema | {name: Kind("float32", (UNKNOWN,)) for name in self.columns}

    def fitted(self, statistics: Any) -> OneHotOf:
        """With the categories that were found."""
        for name, found in zip(self.columns, statistics, strict=True):
            if found is None:
                raise DataError(
                    f"one_hot({name!r}): there are more than {plural(self.limit, 'category').replace('ys', 'ies')} in "
                    f"the training rows. hash({name!r}, 64) makes a fixed number of columns of any number of "
                    f"categories; one_hot({name!r}, limit=...) allows more"
                )
            if not found:
                raise DataError(f"one_hot({name!r}): the column has no value in the training rows: drop({name!r})")
        return OneHotOf(self.columns, tuple(in_order(one) for one in statistics))


class OneHotOf(Written, frozen=True, tag="one_hot_of"):
    """Categories as so many numbers; a row of another one, or of none, has zeros alone."""

    columns: Names
    categories: tuple[tuple[Value, ...], ...]

    def schema(self, schema: Schema) -> Schema:
        """The columns as so many numbers as there are categories."""
        pairs = zip(self.columns, self.categories, strict=True)
        return schema | {name: Kind("float32", (len(known),)) for name, known in pairs}

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        columns = dict(rows.columns)
        for name, known in zip(self.columns, self.categories, strict=True):
            places = places_in(known, columns[name])
            made = np.zeros((len(rows), len(known)), np.float32)
            there = np.flatnonzero(places >= 0)
            made[there, places[there]] = 1
            columns[name] = made
        return replace(rows, columns=columns)


class Classes(_Counting, frozen=True, tag="classes"):
    """Texts or numbers become class numbers, in the order of the values in the training rows."""

    limit: int = MOST_CLASSES

    def on(self, schema: Schema, sample: Rows) -> Classes:
        """For these columns."""
        names = chosen("classes", schema, self.columns, "texts or single numbers", texts_or_numbers(schema))
        return msgspec.structs.replace(self, columns=names)

    def schema(self, schema: Schema) -> Schema:
        """The columns as whole numbers."""
        return schema | {name: Kind("int64") for name in self.columns}

    def fitted(self, statistics: Any) -> ClassesOf:
        """With the classes that were found."""
        pairs = zip(self.columns, statistics, strict=True)
        return ClassesOf(self.columns, tuple(classes_in("classes", name, found, self.limit) for name, found in pairs))


class ClassesOf(Written, frozen=True, tag="classes_of"):
    """Class numbers of known values; any other value is an error."""

    columns: Names
    classes: tuple[tuple[Value, ...], ...]

    def schema(self, schema: Schema) -> Schema:
        """The columns as whole numbers."""
        return schema | {name: Kind("int64") for name in self.columns}

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        columns = dict(rows.columns)
        for name, known in zip(self.columns, self.classes, strict=True):
            columns[name] = numbers_of_classes("classes", name, known, columns[name])
        return replace(rows, columns=columns)


def classes_in(called: str, name: str, found: Any, limit: int) -> tuple[Value, ...]:
    """The classes, in order; `DataError` where there are none, or too many."""
    if found is None:
        raise DataError(
            f"{called}: column {name!r} has more than {limit:,} different values, too many for classes. For a "
            f"quantity, make floats of them, by map for instance; if they are classes: classes({name!r}, limit=...)"
        )
    if not found:
        raise DataError(f"{called}: column {name!r} has no value in the training rows: a class was expected in each")
    return in_order(found)


def numbers_of_classes(called: str, name: str, known: tuple[Value, ...], column: Any) -> Any:
    """The class number of each entry; `DataError` for one that the training rows do not have."""
    numbers = places_in(known, column)
    odd = np.flatnonzero(numbers < 0)
    if not len(odd):
        return numbers
    if missing(column)[odd].any():
        raise DataError(
            f"{called}: column {name!r} is missing in {plural(int(missing(column)[odd].sum()), 'row')} or more. Leave "
            f"them out (filter), or give them a class of their own: fill('none', {name!r})"
        )
    seen = list(dict.fromkeys(taken(column, odd[:1000]).tolist()))[:3]
    some = ", ".join(map(repr, known[:6])) + (", ..." if len(known) > 6 else "")
    raise DataError(
        f"{called}: column {name!r} has {', '.join(map(repr, seen))} in rows that are held out, but the training rows "
        f"have only {some}, so a model cannot learn it. Train on more rows or with another split (seed=...), or leave "
        "such rows out (filter), or join rare classes (map)"
    )


class Hash(Written, frozen=True, tag="hash"):
    """Each value is 1 or -1 at a place that its hash gives: many categories in few numbers, nothing to fit."""

    column: str
    size: int
    seed: int = 0
    places: bool = False
    """The place alone, as a whole number: for an embedding."""

    def schema(self, schema: Schema) -> Schema:
        """The column as `size` numbers, or one."""
        kind = present("hash", schema, self.column)
        if self.column not in texts_or_numbers(schema) and not (kind.ragged and not self.places):
            raise DataError(f"hash({self.column!r}): the column holds {kind}; texts or single numbers were expected")
        made = Kind("int64") if self.places else Kind("float32", (self.size,))
        return schema | {self.column: made}

    def apply(self, rows: Rows) -> Rows:
        """The same rows. Of lists of numbers each entry counts."""
        column = rows.columns[self.column]
        several = isinstance(column, Ragged) and not column.text
        words = words_of(column.values if isinstance(column, Ragged) and several else column, self.seed)
        at = (words % np.uint64(self.size)).astype(np.int64)
        if self.places:
            return replace(rows, columns=rows.columns | {self.column: at})
        signs = np.where(words >> np.uint64(63), np.float32(1), np.float32(-1))
        if isinstance(column, Ragged) and several:
            row = np.repeat(np.arange(len(rows)), np.diff(column.offsets))
        else:
            row, signs = np.arange(len(rows)), np.where(missing(column), np.float32(0), signs)
        made = np.zeros((len(rows), self.size), np.float32)
        np.add.at(made, (row, at), signs)
        return replace(rows, columns=rows.columns | {self.column: made})


def make_hash(column: str, size: Any, seed: int, places: bool) -> Hash:
    """A `Hash` of what a user gave."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise DataError(f"hash({column!r}, {size!r}): a whole number of at least 1 was expected, for instance 64")
    if size > LARGEST_HASH and not places:
        raise DataError(
            f"hash({column!r}, {size}): a row would hold {size} numbers, nearly all of them 0; at most {LARGEST_HASH} "
            "are made. places=True gives the place alone, for an embedding"
        )
    return Hash(column, size, int(seed), bool(places))
