"""New rows for a trained model, through the steps that its training's rows went through."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from cordee.core.errors import DataError
from cordee.core.words import did_you_mean
from cordee.feed.arrays import ArraySource, is_arrow, is_frame
from cordee.feed.batch import Batch
from cordee.feed.columns import TEXT, Column, Kind, Ragged, Schema, kind_of_column, rows_of
from cordee.feed.features import load_features, reader_of
from cordee.feed.late import Late, Transformed
from cordee.feed.places import resolve
from cordee.feed.source import Fields, Source
from cordee.feed.steps.base import shown
from cordee.feed.steps.fit import applied
from cordee.feed.steps.inprocess import joined_rows, raw_rows
from cordee.feed.steps.pack import Y
from cordee.feed.steps.rows import Drop, Filter, FlatMap, Map, Rename, Sample, Select
from cordee.feed.steps.seam import Rows
from cordee.feed.steps.user import as_column
from cordee.feed.steps.written import read_steps
from cordee.feed.store.layout import Features

_BESIDE = ("values", "less", "times", "categories", "classes")
"""Fields of steps with an entry for each column."""


def prepared(run: str | Path, new_rows: Any, functions: Mapping[str, Callable[..., Any]] | None = None) -> Source:
    """New rows as the model of a run takes them: `cordee.predict(model, cordee.data.prepared(run, "new.csv"))`.

    `new_rows`: paths of files as those of the training, a table, a dict of columns, or a list of dicts. A label may be
    missing, and is not looked at; so may columns that `drop` or `select` takes away before any step uses them. No row
    is left out: `filter` and `sample` are for training. Functions of the user's are given again by their names:
    `functions={"clean": clean}`.
    """
    features = load_features(run)
    known = dict(functions or {})
    kept = [one for one in features.steps if one.get("step") not in ("filter", "sample")]
    steps = read_steps(kept, known)
    if missing := [name for name in features.transforms if name not in known]:
        raise DataError(
            f"batches of {Path(run)} were changed by a function of yours, {missing[0]!r}, which is not saved: give it "
            f"again, functions={{{missing[0]!r}: ...}}"
        )
    labels = _raw_labels(features.labels or (Y,), steps)
    schema = {name: Kind(kind.dtype, tuple(kind.shape), kind.ragged) for name, kind in features.columns.items()}
    absent = (set(labels) | _unused(steps, schema)) & schema.keys()
    wanted = {name: kind for name, kind in schema.items() if name not in absent}
    adapted = []
    for step in steps:
        adapted.append(_without(step, absent))
        if isinstance(step, Rename):
            absent = {dict(step.names).get(name, name) for name in absent}
        elif isinstance(step, Drop):
            absent = absent - set(step.columns)
        elif isinstance(step, Select):
            absent = absent & set(step.columns)
    rows = joined_rows([applied(adapted, one) for one in _raw(features, new_rows, wanted)], {})
    if not len(rows):
        raise DataError("there are no rows to predict: the file, or what was given, is empty")
    if odd := [name for name, column in rows.columns.items() if isinstance(column, Ragged)]:
        raise DataError(f"column {odd[0]!r} is no array of numbers behind the steps of the training")
    source: Source = ArraySource({name: np.asarray(column) for name, column in rows.columns.items()})
    for name in features.transforms:
        source = Transformed(source, Late(known[name] if Y in rows.columns else _unlabelled(known[name])))
    return source


def _unlabelled(function: Callable[[Batch], Fields]) -> Callable[[Batch], Fields]:
    """The function for rows without a label: it sees zeros where it asks for one, and what it makes of them is left."""

    @wraps(function)
    def changed(batch: Batch) -> Fields:
        assert isinstance(batch.fields, Mapping)
        zeros = torch.zeros(len(batch.ids), dtype=torch.int64, device=next(iter(batch.fields.values())).device)
        batch.fields = {**batch.fields, Y: zeros}
        made = function(batch)
        return {name: field for name, field in made.items() if name != Y} if isinstance(made, Mapping) else made

    return changed


def _unused(steps: Sequence[Any], names: Iterable[str]) -> set[str]:
    """Columns of the files that `drop` or `select` takes away before anything looks at them."""
    left = {name: name for name in names}  # what they are called at this step → in the files
    unused: set[str] = set()
    for step in steps:
        if isinstance(step, Map | FlatMap):  # the user's function may look at any
            break
        if isinstance(step, Rename):
            left = {dict(step.names).get(name, name): raw for name, raw in left.items()}
        elif isinstance(step, Drop | Select):
            gone = [name for name in left if (name in step.columns) == isinstance(step, Drop)]
            unused |= {left.pop(name) for name in gone}
        else:
            used = {*getattr(step, "columns", ()), getattr(step, "column", ""), *getattr(step, "inputs", ())}
            left = {name: raw for name, raw in left.items() if name not in used}
    return unused


def _raw(features: Features, given: Any, wanted: Schema) -> list[Rows]:
    """The rows with the columns of the training, but for the label."""
    if _is_path(given):
        reader = reader_of(features.reader, list(wanted))
        if reader is None:
            raise DataError(
                "the training's rows did not come from files that can be read again in the same way: give new rows as "
                "a frame, a dict of columns, or a list of dicts"
            )
        places = resolve(given, reader.endings)
        own = reader.schema(places)
        if lacking := [name for name in wanted if name not in own]:
            raise _lacks(lacking, own)
        return list(raw_rows(reader, places, {name: replace(own[name], **_form(wanted[name])) for name in wanted}))
    columns = _columns(given)
    if lacking := [name for name in wanted if name not in columns]:
        raise _lacks(lacking, columns)
    taken = {name: _as_kind(name, columns[name], kind) for name, kind in wanted.items()}
    count = rows_of(taken)
    return [Rows(taken, np.arange(count, dtype=np.uint64), np.zeros(count, np.uint8))]


def _form(kind: Kind) -> dict[str, Any]:
    return {"dtype": kind.dtype, "shape": kind.shape, "ragged": kind.ragged}


def _is_path(given: Any) -> bool:
    one = given[0] if isinstance(given, list | tuple) and given else given
    return isinstance(one, str | os.PathLike)


def _columns(given: Any) -> dict[str, Column]:
    if isinstance(given, list | tuple) and given and all(isinstance(one, Mapping) for one in given):
        names = dict.fromkeys(name for row in given for name in row)
        given = {name: [row.get(name) for row in given] for name in names}
    if is_arrow(given):
        given = given.to_pydict()
    if is_frame(given):
        given = {str(name): given[name].to_numpy() for name in given.columns}
    if not isinstance(given, Mapping):
        raise DataError(
            f"new rows of type {type(given).__name__} are not understood: a path, a frame or table, a dict of columns "
            "or a list of dicts was expected"
        )
    return {str(name): _column(str(name), one) for name, one in given.items()}


def _column(name: str, value: Any) -> Column:
    """Of values that may be missing: None and NaN."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    if isinstance(value, list):
        texts = any(isinstance(one, str) for one in value)
        hollow = [one is None or (isinstance(one, float) and one != one) for one in value]
        value = [("" if texts else float("nan")) if gone else one for one, gone in zip(value, hollow, strict=True)]
    return as_column("new rows", name, value)


def _as_kind(name: str, column: Column, kind: Kind) -> Column:
    """As the training had it; `DataError` where that would change values."""
    found = kind_of_column(column)
    if found == kind:
        return column
    text = kind.dtype == TEXT
    if text and not isinstance(column, Ragged) and column.ndim == 1:
        return Ragged.of(["" if one != one else str(one) for one in column.tolist()])
    if not isinstance(column, Ragged) and not kind.ragged and found.shape == kind.shape:
        as_wanted = column.astype(kind.dtype)
        if np.array_equal(as_wanted, column, equal_nan=as_wanted.dtype.kind == "f"):
            return as_wanted
        if as_wanted.dtype.kind == "f" and column.dtype.kind in "biuf":  # of less precision
            return as_wanted
    if isinstance(column, Ragged) and kind.ragged and not column.text and not text:
        return Ragged(column.offsets, column.values.astype(kind.dtype))
    raise DataError(f"new rows: column {name!r} holds {found}, but {kind} in the training; give it as such")


def _lacks(lacking: Sequence[str], there: Mapping[str, Any]) -> DataError:
    given = shown({name: kind if isinstance(kind, Kind) else kind_of_column(kind) for name, kind in there.items()})
    near = did_you_mean(lacking[0], there)
    return DataError(
        f"new rows have no column {', '.join(map(repr, lacking))}, which the model needs.{near} They have {given}"
    )


def _raw_labels(labels: Sequence[str], steps: Sequence[Any]) -> tuple[str, ...]:
    """What the label is called in the files."""
    for step in reversed(steps):
        if isinstance(step, Rename):
            old = {new: name for name, new in step.names}
            labels = [old.get(name, name) for name in labels]
    return tuple(labels)


def _without(step: Any, absent: set[str]) -> Any:
    """The step for rows that lack these columns."""
    if isinstance(step, Filter | Sample) or not absent:
        return step
    if isinstance(step, Rename):
        return Rename(tuple(pair for pair in step.names if pair[0] not in absent))
    if isinstance(step, Map | FlatMap):
        return msgspec.structs.replace(step, gives=tuple(pair for pair in step.gives or () if pair[0] not in absent))
    columns = getattr(step, "columns", None)
    if not columns or absent.isdisjoint(columns):
        return step
    left = [place for place, name in enumerate(columns) if name not in absent]
    changes = {"columns": tuple(columns[place] for place in left)}
    if not isinstance(step, Select):
        beside = [name for name in _BESIDE if hasattr(step, name)]
        changes |= {name: tuple(getattr(step, name)[place] for place in left) for name in beside}
    return msgspec.structs.replace(step, **changes)
