"""Columns that the names of folders hold, as Hive, Spark and pyarrow write them: `year=2024/kind=a/part.parquet`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cordee.feed.columns import TEXT, Columns, Schema
from cordee.feed.places import Place
from cordee.feed.sources.arrow import pyarrow, sorted_out
from cordee.feed.sources.seam import Unreadable

_WHOLE = re.compile(r"[-+]?\d{1,18}")


def types_in_folders(places: Sequence[Place]) -> dict[str, Any]:
    """The Arrow type of each column: whole numbers where all values are such, else text."""
    values: dict[str, set[str | None]] = {}
    for place in places:
        for name, value in place.folders:
            values.setdefault(name, set()).add(value)
    pa = pyarrow()
    return {name: pa.int64() if _whole(found) else pa.string() for name, found in values.items()}


def row_of_folders(place: Place, schema: Schema, there: Sequence[str]) -> Columns:
    """What the folders of a file say of each of its rows, in one row: columns of the schema that are not `there`."""
    pa, arrays = pyarrow(), {}
    for name, value in place.folders:
        if name in schema and name not in there:
            whole = schema[name].dtype != TEXT and _whole({value})
            arrays[name] = pa.array([int(value)], pa.int64()) if value and whole else pa.array([value], pa.string())
    columns, _, bad = sorted_out(pa.table(arrays), {name: schema[name] for name in arrays})
    if bad:
        raise Unreadable(f"by the names of its folders, {bad[0][1]}", place)
    return columns


def _whole(values: set[str | None]) -> bool:
    return any(values) and all(one is None or _WHOLE.fullmatch(one) for one in values)
