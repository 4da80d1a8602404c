"""Kinds of columns as users write them: `float32`, `uint8 (28, 28)`, `int64 (any length)`, `text`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import TEXT, Kind, Schema

TEXTS = Kind(TEXT, ragged=True)
_FORM = re.compile(r"(\w+)\s*(?:\((any length|[\d\s,]*)\))?")


def as_kinds(given: Mapping[str, Kind | str]) -> Schema:
    """Kinds of what may be kinds already."""
    return {name: one if isinstance(one, Kind) else as_kind(one, name) for name, one in given.items()}


def as_kind(text: str, name: str) -> Kind:
    """The kind that a text names, for the column of this name."""
    match = _FORM.fullmatch(str(text).strip())
    dtype, size = match.groups() if match is not None else ("", None)
    if dtype == TEXT and size in (None, "any length"):
        return TEXTS
    try:
        kind = np.dtype(dtype).kind if dtype else ""
    except TypeError:
        kind = ""
    if kind not in ("b", "i", "u", "f"):
        raise DataError(
            f"{name}: {text!r} is no kind of column; write one as 'float32', 'uint8 (28, 28)' (of one shape), "
            "'int64 (any length)' or 'text'"
        )
    if size == "any length":
        return Kind(np.dtype(dtype).name, ragged=True)
    return Kind(np.dtype(dtype).name, tuple(int(one) for one in (size or "").replace(" ", "").split(",") if one))
