"""What all steps have in common: they are written as JSON, and name the columns that they cannot do with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from cordee.core.errors import DataError
from cordee.core.words import did_you_mean
from cordee.feed.columns import TEXT, Column, Kind, Schema
from cordee.feed.steps.code import code_of
from cordee.feed.steps.hints import hint
from cordee.feed.steps.user import Function

NUMBERS = frozenset(
    ["float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
)
"""Types of numbers that may be added up; booleans are not among them."""
TEXTS = Kind(TEXT, ragged=True)
UNKNOWN = -1
"""The size of a dimension that is known when a step was fitted."""


class Written(msgspec.Struct, frozen=True, tag_field="step"):
    """A value that is one JSON object, with the step's name in it."""

    @property
    def key(self) -> str:
        """As JSON; of the user's functions, what they consist of."""
        return msgspec.json.encode(self, enc_hook=_code, order="deterministic").decode()

    @property
    def called(self) -> str:
        """The step's name, as it is called."""
        return str(type(self).__struct_config__.tag)


def _code(held: Any) -> str:
    assert isinstance(held, Function), held
    return code_of(held.call)


def chosen(
    called: str,
    schema: Schema,
    names: Sequence[str],
    what: str,
    fits: Iterable[str],
    but: Sequence[str] = (),
    sample: Mapping[str, Column] = {},
) -> tuple[str, ...]:
    """The columns that a step is for: those named, all of which must fit; without names, all that do, but for `but`.

    Of a `sample` of rows an error tells what its texts look like.
    """
    fitting = tuple(fits)
    if not names:
        found = tuple(name for name in fitting if name not in but)
        if not found:
            raise DataError(
                f"{called}(): there is no column of {what}; there are {shown(schema)}{hint(schema, sample)}"
            )
        return found
    fits_too = set(fitting)
    for name in names:
        present(called, schema, name)
        if name not in fits_too:
            raise DataError(
                f"{called}({name!r}): the column holds {schema[name]}; {what} were expected{hint([name], sample)}"
            )
    return tuple(names)


def present(called: str, schema: Schema, name: str) -> Kind:
    """The kind of a column; `DataError` if there is none of this name."""
    if name not in schema:
        raise DataError(
            f"{called}({name!r}): there is no such column.{did_you_mean(str(name), schema)} There are {shown(schema)}"
        )
    return schema[name]


def shown(schema: Schema) -> str:
    """Names and kinds of columns, for messages; the first of many."""
    some = [f"{name} ({kind})" for name, kind in list(schema.items())[:12]]
    return ", ".join([*some, *(["..."] if len(schema) > len(some) else [])]) or "none"


def single_numbers(schema: Schema) -> list[str]:
    """Columns with one number per row."""
    return [name for name, kind in schema.items() if kind.dtype in NUMBERS and not kind.shape and not kind.ragged]


def numbers_of_one_shape(schema: Schema) -> list[str]:
    """Columns with as many numbers in each row."""
    return [name for name, kind in schema.items() if kind.dtype in NUMBERS and not kind.ragged]


def texts_or_numbers(schema: Schema) -> list[str]:
    """Columns with one text, one number or one boolean per row."""
    known = NUMBERS | {"bool"}
    return [
        name for name, kind in schema.items() if kind == TEXTS or (kind.dtype in known and kind == Kind(kind.dtype))
    ]


def changed(schema: Schema, columns: Iterable[str], **fields: Any) -> Schema:
    """The schema with these columns of another kind, each at its place."""
    return schema | {name: replace(schema[name], **fields) for name in columns}
