"""The end of a chain: columns side by side in one field, and the label as what a loss compares with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from cordee.core.errors import DataError
from cordee.core.words import did_you_mean, plural
from cordee.feed.columns import Columns, Kind, Schema, kind_of_column
from cordee.feed.steps.base import NUMBERS, TEXTS, Written, present, shown
from cordee.feed.steps.categories import MOST_CLASSES, classes_in, numbers_of_classes
from cordee.feed.steps.hints import hint
from cordee.feed.steps.seam import Rows
from cordee.feed.steps.values import Value, merge_values, values_of

Names = tuple[str, ...]
X, Y = "x", "y"
LARGEST = 2.0**24
_PACKED = NUMBERS | {"bool"}


class Pack(Written, frozen=True, tag="pack"):
    """Columns side by side in one, flat, as float32."""

    name: str
    columns: Names = ()
    but: Names = ()
    complete: bool = False
    """Refuse missing values, and those that float32 would round."""

    def on(self, schema: Schema, sample: Rows) -> Pack:
        """For these columns: those named, or all of numbers and booleans but the label, x and images."""
        flat = [
            name for name, kind in schema.items() if kind.dtype in _PACKED and not kind.ragged and len(kind.shape) < 2
        ]
        names = self.columns or tuple(name for name in flat if name not in (*self.but, X))
        if not names:
            raise DataError(f"pack({self.name!r}): there is no column of numbers; there are {shown(schema)}")
        return msgspec.structs.replace(self, columns=names)

    def schema(self, schema: Schema) -> Schema:
        """The others, and the new one behind them."""
        width = 0
        for name in self.columns:
            kind = present("pack", schema, name)
            if kind.dtype not in _PACKED or kind.ragged:
                raise DataError(
                    f"pack({self.name!r}): column {name!r} holds {kind}; numbers were expected. {advice(kind)}"
                )
            width += int(np.prod(kind.shape))
        packed = set(self.columns)
        left = {name: kind for name, kind in schema.items() if name not in packed}
        if self.name in left:
            raise DataError(f"pack({self.name!r}): there is a column of this name already: pack it too, or rename it")
        return left | {self.name: Kind("float32", (width,))}

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        parts = [np.asarray(rows.columns[name]) for name in self.columns]
        flat = [part.reshape(len(part), -1).astype(np.float32) for part in parts]
        if self.complete:
            holes = [name for name, part in zip(self.columns, flat, strict=True) if np.isnan(part).any()]
            if holes:
                raise DataError(
                    f"values are missing in {named(holes)}: fill('mean') or fill(0, {holes[0]!r}) puts one there, "
                    f"drop({holes[0]!r}) leaves the column out, and filter the rows"
                )
            for name, part in zip(self.columns, flat, strict=True):
                if (most := np.abs(part).max(initial=0.0)) > LARGEST:
                    raise DataError(
                        f"column {name!r} has values up to {most:.3g} (dates are seconds since 1970), and "
                        f"nothing brings them near 1: float32 knows whole numbers up to {LARGEST:.3g} only. "
                        f"standardize({name!r}), scale({name!r}), or drop({name!r})"
                    )
        packed = set(self.columns)
        left = {name: column for name, column in rows.columns.items() if name not in packed}
        return replace(rows, columns=left | {self.name: np.concatenate(flat, axis=1)})


class Finish(Written, frozen=True, tag="finish"):
    """What training needs of the last columns: x, if the chain has not made it, and y of the label."""

    label: Names = ()
    inputs: Names = ()
    """What is packed into x."""
    classes: bool = False
    """Whether the label becomes class numbers."""

    def on(self, schema: Schema, sample: Rows) -> Finish | Finished:
        """The step for these columns; `DataError` for such as no tensor can be made of."""
        if not self.label and schema.get(Y) == TEXTS:  # a column that is called y is the label, and texts are classes
            return Finish((Y,)).on(schema, sample)
        kinds = [self._label(schema, name) for name in self.label] if Y not in schema or Y in self.label else []
        inputs = self._inputs(schema) if self.label and X not in schema else ()
        strange = {n: k for n, k in schema.items() if n not in self.label and (k.ragged or k.dtype not in _PACKED)}
        if strange:
            raise DataError(
                f"nothing makes numbers of {named(strange)} ({', '.join(str(kind) for kind in strange.values())}). "
                + advice(next(iter(strange.values())), next(iter(strange)))
                + hint(strange, sample.columns)
            )
        if len(kinds) == 1 and not kinds[0].shape and (kinds[0] == TEXTS or not kinds[0].dtype.startswith("float")):
            return Finish(self.label, inputs, True)
        return Finished(self.label if kinds else (), inputs)

    def _label(self, schema: Schema, name: str) -> Kind:
        if name not in schema:
            raise DataError(
                f"the label {name!r} is not there behind the last step.{did_you_mean(name, schema)} There are "
                f"{shown(schema)}: keep it, or name another one: labelled('...')"
            )
        kind = schema[name]
        several = len(self.label) > 1
        if (kind.ragged and (kind != TEXTS or several)) or not (kind == TEXTS or kind.dtype in _PACKED):
            raise DataError(
                f"the label {name!r} holds {kind}: a text, a number, or as many numbers in each row were expected"
                + ("; classes makes numbers of texts" if kind == TEXTS else "")
            )
        return kind

    def _inputs(self, schema: Schema) -> Names:
        given = {name: kind for name, kind in schema.items() if name not in self.label and name != Y}
        large = [name for name, kind in given.items() if len(kind.shape) > 1]
        lists = [name for name, kind in given.items() if kind.shape and "int" in kind.dtype and name not in large]
        if (large or lists) and len(given) > 1:
            first = [*large, *lists][0]
            raise DataError(
                f"{named(given)} could be the model's input x together or apart, as {first!r} is an image or a list of "
                f"whole numbers: say which one x is, by rename({first}='x') for instance. The others stay in a batch "
                "by their names (batch.fields), or side by side by pack('table', columns)"
            )
        if not given:
            raise DataError(f"there is no column but the label {named(self.label)}: nothing to predict it from")
        return tuple(given)

    @property
    def reads(self) -> Names:
        """The label."""
        return self.label

    @property
    def makes(self) -> Names:
        """All that is there behind it."""
        return (X, Y, *self.label, *self.inputs)

    def schema(self, schema: Schema) -> Schema:
        """X and y, and what else there is."""
        return Finished(self.label, self.inputs, ()).schema(schema) | {Y: Kind("int64")}

    def of(self, columns: Columns) -> Any:
        """The values of the label."""
        return values_of(columns[self.label[0]], MOST_CLASSES)

    def merge(self, one: Any, other: Any) -> Any:
        """Of both."""
        return merge_values(one, other, MOST_CLASSES)

    def fitted(self, statistics: Any) -> Finished:
        """With the classes that were found."""
        return Finished(self.label, self.inputs, classes_in("label", self.label[0], statistics, MOST_CLASSES))


class Finished(Written, frozen=True, tag="finished"):
    """x of the inputs, and y of the label: class numbers, or float32."""

    label: Names
    inputs: Names
    classes: tuple[Value, ...] = ()

    def schema(self, schema: Schema) -> Schema:
        """X and y, and what else there is."""
        after = dict(schema)
        if self._whole(schema):
            after[X] = after.pop(self.inputs[0])
        elif self.inputs:
            after = Pack(X, self.inputs).schema(after)
        labels = [after.pop(name) for name in self.label if name in after]  # rows to predict have none
        if labels:
            after[Y] = replace(self._target(labels), shape=()) if self.classes else self._target(labels)
        return after

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        columns = dict(rows.columns)
        there = [columns.pop(name) for name in self.label if name in columns]
        schema = {name: kind_of_column(columns[name]) for name in self.inputs}
        if self._whole(schema):
            columns[X] = columns.pop(self.inputs[0])
        elif self.inputs:
            packed = Pack(X, self.inputs, complete=True).apply(replace(rows, columns=columns))
            columns = dict(packed.columns)
        if there and self.classes:
            columns[Y] = numbers_of_classes("label", self.label[0], self.classes, there[0])
        elif there:
            columns[Y] = self._targets(there)
        return replace(rows, columns=columns)

    def _whole(self, schema: Schema) -> bool:
        """Whether x is one column as it is: an image, or tokens."""
        kind = schema[self.inputs[0]] if len(self.inputs) == 1 else Kind("")
        return len(kind.shape) > 1 or (len(kind.shape) == 1 and "int" in kind.dtype)

    def _target(self, labels: list[Kind]) -> Kind:
        """Class numbers, also where a row has many of them; else float32, of several labels side by side."""
        if self.classes or (len(labels) == 1 and "int" in labels[0].dtype):
            return Kind("int64", labels[0].shape)
        shape = labels[0].shape if len(labels) == 1 else (sum(int(np.prod(kind.shape)) for kind in labels),)
        return Kind("float32", shape)

    def _targets(self, labels: list[Any]) -> Any:
        dtype = self._target([kind_of_column(one) for one in labels]).dtype
        made = [np.asarray(one).astype(dtype) for one in labels]
        if holes := [name for name, one in zip(self.label, made, strict=False) if np.isnan(one).any()]:
            bad = sum(int(np.isnan(one).any(axis=tuple(range(1, one.ndim))).sum()) for one in made)
            raise DataError(
                f"the label {named(holes)} is missing in {plural(bad, 'row')} or more: leave them out, for instance "
                f"filter(lambda columns: columns[{holes[0]!r}] == columns[{holes[0]!r}])"
            )
        return made[0] if len(made) == 1 else np.concatenate([one.reshape(len(one), -1) for one in made], axis=1)


def advice(kind: Kind, name: str = "column") -> str:
    """What makes numbers of such a column."""
    if kind == TEXTS:
        return (
            f"one_hot({name!r}) makes numbers of categories, hash({name!r}, 64) of any number of them, "
            f"tokenize({name!r}, length=...) of words; drop({name!r}) leaves it out"
        )
    if kind.ragged:
        return f"pad({name!r}, length) makes lists of one length; drop({name!r}) leaves it out"
    if kind.dtype.startswith("datetime"):
        return (
            f"map makes numbers of dates, for instance columns[{name!r}].astype('datetime64[D]').astype(float); "
            f"drop({name!r}) leaves it out"
        )
    return f"map makes numbers of it; drop({name!r}) leaves it out"


def named(names: Any) -> str:
    """Names of columns in a message; the first of many."""
    listed = [repr(one) for one in names]
    return ", ".join([*listed[:6], *(["..."] if len(listed) > 6 else [])])
