"""Types that a user gives for columns: `types={"age": "float32", "zip": "text", "image": "uint8 (28, 28)"}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import TEXT, Kind, Schema

Types = Mapping[str, Any] | None
"""By column: NumPy's name of a type, with a shape if entries have one, `text`, or a type of NumPy's or Python's."""
TypePairs = tuple[tuple[str, Kind], ...]

_FORM = re.compile(r"(\w+)(?: ?\((any length|[\d, ]+)\))?")
_TEXTS = (TEXT, "str", "string")


def type_pairs(types: Types) -> TypePairs:
    """As readers keep them: in one order, checked."""
    return tuple(sorted((str(name), _kind(str(name), given)) for name, given in (types or {}).items()))


def with_types(schema: Schema, types: TypePairs) -> Schema:
    """The schema with the types that the user gave; `DataError` for a column that is not there."""
    given = dict(types)
    check_names(list(given), list(schema), "types")
    return {name: _like(given.get(name, kind), kind) for name, kind in schema.items()}


def check_names(asked: Sequence[str], there: Sequence[str], argument: str) -> None:
    """Columns that an argument names must be there."""
    known = set(there)
    absent = [name for name in asked if name not in known]
    if absent:
        shown = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
        raise DataError(
            f"{argument} names {', '.join(map(repr, absent))}, which no column is called: there are {shown}"
        )


def other_columns(found: Sequence[str], wanted: Sequence[str], *, only: bool) -> str | None:
    """What is wrong with the columns of a file; their order does not matter. `only`: it may have no others either."""
    there, known = set(found), set(wanted)
    lacking = [name for name in wanted if name not in there]
    more = [name for name in found if name not in known] if only else []
    parts = [f"{word} {', '.join(names[:5])}" for word, names in (("no", lacking), ("also", more)) if names]
    shown = ", ".join(list(wanted)[:5]) + ", ..." * (len(wanted) > 5)
    return f"it has {' and '.join(parts)}: not the columns {shown}" if parts else None


def _like(given: Kind, found: Kind) -> Kind:
    return Kind(given.dtype, given.shape, given.ragged, raw=found.raw)


def _kind(name: str, given: Any) -> Kind:
    if isinstance(given, Kind):
        return given
    if given is str or (isinstance(given, str) and given.strip() in _TEXTS):
        return Kind(TEXT, ragged=True)
    form = _FORM.fullmatch(given.strip()) if isinstance(given, str) else None
    try:
        dtype = np.dtype(form.group(1) if form else given)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biuf" or (isinstance(given, str) and not form):
        raise DataError(
            f"types={{{name!r}: {given!r}}} is not known: give a NumPy type of numbers such as 'float32', 'int64' or "
            "'bool', with a shape where entries have one ('uint8 (28, 28)'), or 'text'"
        )
    inside = form.group(2) if form else None
    if inside == "any length":
        return Kind(dtype.name, ragged=True)
    return Kind(dtype.name, tuple(int(one) for one in re.findall(r"\d+", inside or "")))
