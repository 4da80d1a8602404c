"""Steps on columns of numbers: missing values filled, standardised or scaled by what the training rows show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Ragged, Schema
from cordee.feed.steps.base import NUMBERS, TEXTS, Written, changed, chosen, numbers_of_one_shape, single_numbers
from cordee.feed.steps.moments import (
    bounds_of,
    counts_of,
    mean_and_deviation,
    median_of,
    merge_bounds,
    merge_counts,
    moments_of,
    numbers,
)
from cordee.feed.steps.seam import Rows

Names = tuple[str, ...]
STATISTICS = ("mean", "median")


class Affine(Written, frozen=True, tag="affine"):
    """Numbers less one thing, times another, as float32."""

    columns: Names
    less: tuple[Any, ...]
    """For each column, in its shape."""
    times: tuple[Any, ...]

    def schema(self, schema: Schema) -> Schema:
        """The columns as float32."""
        return changed(schema, self.columns, dtype="float32")

    def apply(self, rows: Rows) -> Rows:
        """Computed in float64; missing values stay so."""
        columns = dict(rows.columns)
        for name, less, times in zip(self.columns, self.less, self.times, strict=True):
            column = np.asarray(columns[name])
            values = (numbers(column) - np.asarray(less)) * np.asarray(times)
            columns[name] = values.astype(np.float32).reshape(column.shape)
        return replace(rows, columns=columns)


class _OfNumbers(Written, frozen=True):
    columns: Names = ()
    but: Names = ()

    def on(self, schema: Schema, sample: Rows) -> _OfNumbers:
        """For these columns: those named, or all of single numbers but the label."""
        fits = numbers_of_one_shape(schema) if self.columns else single_numbers(schema)
        names = chosen(self.called, schema, self.columns, "numbers", fits, self.but, sample.columns)
        return msgspec.structs.replace(self, columns=names)

    @property
    def reads(self) -> Names:
        """The columns."""
        return self.columns

    @property
    def makes(self) -> Names:
        """The same ones."""
        return self.columns

    def schema(self, schema: Schema) -> Schema:
        """The columns as float32."""
        return changed(schema, self.columns, dtype="float32")


class Standardize(_OfNumbers, frozen=True, tag="standardize"):
    """Mean 0 and standard deviation 1 over the training rows; a constant column becomes 0."""

    def of(self, columns: Columns) -> Any:
        """Moments of each column."""
        return [moments_of(columns[name]) for name in self.columns]

    def merge(self, one: Any, other: Any) -> Any:
        """Of both."""
        return [[*first, *second] for first, second in zip(one, other, strict=True)]

    def fitted(self, statistics: Any) -> Affine:
        """With what was found."""
        less, times = [], []
        for name, moments in zip(self.columns, statistics, strict=True):
            _, mean, deviation = mean_and_deviation(moments)
            check_found(self.called, name, mean)
            # A column of one value has a deviation of rounding alone.
            constant = deviation <= 1e-12 * np.abs(mean)
            less.append(mean)
            times.append(np.where(constant, 0.0, 1 / np.where(constant, 1.0, deviation)))
        return Affine(self.columns, _plain(less), _plain(times))


class Scale(_OfNumbers, frozen=True, tag="scale"):
    """The least value of the training rows becomes 0, the largest 1; a constant column becomes 0."""

    def of(self, columns: Columns) -> Any:
        """Least and most of each column."""
        return [bounds_of(columns[name]) for name in self.columns]

    def merge(self, one: Any, other: Any) -> Any:
        """Of both."""
        return [merge_bounds(first, second) for first, second in zip(one, other, strict=True)]

    def fitted(self, statistics: Any) -> Affine:
        """With what was found."""
        for name, (least, most) in zip(self.columns, statistics, strict=True):
            check_found(self.called, name, least + most)
        less = [least for least, _ in statistics]
        widths = [most - least for least, most in statistics]
        times = [np.where(width > 0, 1 / np.where(width > 0, width, 1.0), 0.0) for width in widths]
        return Affine(self.columns, _plain(less), _plain(times))


class Fill(_OfNumbers, frozen=True, tag="fill"):
    """Missing values become the mean or the median of the training rows."""

    how: str = "mean"

    def on(self, schema: Schema, sample: Rows) -> Fill:
        """For these columns: those named, or all of single numbers that may be missing."""
        fits = single_numbers(schema)
        if not self.columns:
            fits = [name for name in fits if schema[name].dtype.startswith("float")]
        names = chosen(
            f"fill({self.how!r})", schema, self.columns, "numbers that may be missing", fits, self.but, sample.columns
        )
        return msgspec.structs.replace(self, columns=names)

    def schema(self, schema: Schema) -> Schema:
        """The same columns."""
        return schema

    def of(self, columns: Columns) -> Any:
        """Moments, or how often each value comes."""
        return [moments_of(columns[name]) if self.how == "mean" else counts_of(columns[name]) for name in self.columns]

    def merge(self, one: Any, other: Any) -> Any:
        """Of both."""
        pairs = zip(one, other, strict=True)
        if self.how == "mean":
            return [[*first, *second] for first, second in pairs]
        return [merge_counts(first, second) for first, second in pairs]

    def fitted(self, statistics: Any) -> Filled:
        """With what was found."""
        values = []
        for name, found in zip(self.columns, statistics, strict=True):
            value = float(mean_and_deviation(found)[1][0]) if self.how == "mean" else median_of(found)
            check_found(f"fill({self.how!r})", name, value)
            values.append(value)
        return Filled(self.columns, tuple(values))


class Filled(Written, frozen=True, tag="filled"):
    """Missing values become a given one: NaN among numbers, empty ones among texts."""

    columns: Names
    values: tuple[float | str, ...]
    """For each column; one value for all columns of its kind where none is named."""
    but: Names = ()

    def on(self, schema: Schema, sample: Rows) -> Filled:
        """For these columns: those named, or all that the value fits."""
        value = self.values[0]
        if isinstance(value, str):
            fits, what = [name for name, kind in schema.items() if kind == TEXTS], "texts"
        else:
            fits, what = [name for name, kind in schema.items() if kind.dtype in NUMBERS and not kind.ragged], "numbers"
            if not self.columns:
                fits = [name for name in fits if schema[name].dtype.startswith("float") and not schema[name].shape]
        names = chosen(f"fill({value!r})", schema, self.columns, what, fits, self.but, sample.columns)
        values = self.values if len(self.values) == len(names) else (value,) * len(names)
        return msgspec.structs.replace(self, columns=names, values=values)

    def schema(self, schema: Schema) -> Schema:
        """The same columns."""
        return schema

    def apply(self, rows: Rows) -> Rows:
        """The rows without missing values in these columns."""
        columns = dict(rows.columns)
        for name, value in zip(self.columns, self.values, strict=True):
            column = columns[name]
            if isinstance(column, Ragged):
                if (np.diff(column.offsets) == 0).any():
                    columns[name] = Ragged.of([one or value for one in column.tolist()])
            elif column.dtype.kind == "f":
                columns[name] = np.where(np.isnan(column), column.dtype.type(value), column)
        return replace(rows, columns=columns)


def check_found(called: str, name: str, value: Any) -> None:
    """Refuse statistics of a column in which the training rows have no value, or one that is not finite."""
    if np.isfinite(value).all():
        return
    raise DataError(
        f"{called}: column {name!r} has no value in the training rows, or infinite ones: drop({name!r}), or fill or "
        "filter it by a function of your own (map) before"
    )


def _plain(values: list[Any]) -> tuple[Any, ...]:
    """Single numbers as such, others as lists."""
    return tuple(one.item() if one.size == 1 else one.tolist() for one in map(np.asarray, values))
