"""Labels by the folder that a file lies in: classes are the names of folders, sorted, and numbered from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cordee.core.errors import DataError
from cordee.core.words import did_you_mean
from cordee.feed.columns import Kind, Schema
from cordee.feed.places import Place

BY = ("folder", "top")
"""`folder`: the one that the file itself lies in. `top`: the first one below what the user named."""
_MARK, _BETWEEN = "classes", "\0"
"""What `Kind.raw` begins with, and what stands before each class; no name of a folder holds it."""


def label_of(kind: Kind, place: Place, by: str) -> int:
    """The number of a file's class, of those that the column's kind names."""
    name, classes = class_of(place, by), classes_in(kind)
    if name not in classes:
        raise DataError(
            f"{place.shown}: its class is {name!r} by its folder, which is none of {', '.join(classes[:8])}."
            f"{did_you_mean(name, classes)} Give all of them: classes=[...]"
        )
    return classes.index(name)


def label_kind(places: Sequence[Place], by: str, classes: Sequence[str] = ()) -> Kind:
    """The column of class numbers for these files; `classes` gives the names, otherwise they are those found."""
    found = sorted(set(classes) or {class_of(place, by) for place in places})
    return replace(Kind("int64"), raw=_BETWEEN.join([_MARK, *(classes or found)]))


def classes_in(kind: Kind) -> tuple[str, ...]:
    """What the numbers of a column of labels stand for."""
    mark, *classes = kind.raw.split(_BETWEEN)
    return tuple(classes) if mark == _MARK else ()


def classes_of(schema: Schema) -> dict[str, tuple[str, ...]]:
    """The same of all columns that have it."""
    return {name: classes for name, kind in schema.items() if (classes := classes_in(kind))}


def class_of(place: Place, by: str) -> str:
    """The class of a file by its folder."""
    folders = place.key.split("/")[:-1]
    if not folders:
        raise DataError(
            f"{place.shown} lies in no folder below what was named, so it has no class; name the folder that holds one "
            "folder per class, or leave labels out: label=None"
        )
    return folders[-1] if by == "folder" else folders[0]


def check_label(by: str | None) -> None:
    """Refuse what is not known."""
    if by is not None and by not in BY:
        raise DataError(f"label={by!r}: choose {' or '.join(map(repr, BY))}, or None for rows without labels")
