"""Columns as functions of the user's see them, and what they give back."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import CordeeError, DataError
from cordee.feed.columns import TEXT, Column, Columns, Kind, Ragged, kind_of_column
from cordee.feed.steps.code import is_tensor, name_of

_PLAIN = "biufM"  # kinds of NumPy's types that a column may have


class Function:
    """A function of the user's in a step: written by its name, and given again when the step is read."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        """Hold it."""
        self.call = call

    @property
    def name(self) -> str:
        """What it is called."""
        return name_of(self.call)

    def __eq__(self, other: object) -> bool:
        """Of the same function."""
        return isinstance(other, Function) and other.call == self.call

    def __hash__(self) -> int:
        """By identity of the function."""
        return hash(id(self.call))

    def run(self, called: str, *given: Any) -> Any:
        """Call it; what it raises becomes a `DataError` that names the step, and the line in the user's file."""
        try:
            return self.call(*given)
        except CordeeError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:]
            at = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
            seen = f"; it was given {_described(given[0])}" if given else ""
            raise DataError(f"{called}({self.name}): {type(error).__name__}: {error}{at}{seen}") from error


def check_callable(called: str, function: Any, takes: str) -> Function:
    """The function for a step; `DataError` for what cannot be called."""
    if not callable(function) or isinstance(function, type):
        raise DataError(f"{called}({function!r}): a function was expected, which takes {takes}")
    return Function(function)


def given(columns: Columns) -> dict[str, NDArray[Any]]:
    """Columns for a user's function: arrays, which it may write into; texts as an array of `str`."""
    return {name: entries(column) for name, column in columns.items()}


def entries(column: Column) -> NDArray[Any]:
    """A column as an array: of objects where entries are texts, or differ in length."""
    if not isinstance(column, Ragged):
        return column if column.flags.writeable else column.copy()
    listed = column.tolist()
    array = np.empty(len(listed), dtype=object)
    for place, one in enumerate(listed):
        array[place] = one
    return array


def rows_in(columns: Columns) -> list[dict[str, Any]]:
    """Each row as a dict: Python's numbers and texts, arrays."""
    plain = {
        name: column.tolist() if isinstance(column, Ragged) or column.ndim == 1 else list(column)
        for name, column in columns.items()
    }
    return [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]


def columns_of_rows(called: str, rows: Sequence[Any], kinds: Iterable[tuple[str, Kind]] = ()) -> Columns:
    """Columns of dicts that all have the same keys."""
    for row in rows:
        if not isinstance(row, Mapping):
            raise DataError(f"{called}: a row is a dict, but the function gave a {type(row).__name__}")
        if row.keys() != rows[0].keys():
            differ = ", ".join(sorted(map(str, row.keys() ^ rows[0].keys())))
            raise DataError(f"{called}: rows differ in their columns ({differ}): give all of them in every row")
    if not rows:
        return {name: empty(kind) for name, kind in kinds}
    return {str(name): as_column(called, str(name), [row[name] for row in rows]) for name in rows[0]}


def returned(called: str, value: Any, count: int | None = None) -> Columns:
    """Columns of what a function gave; all of one length, and so many rows if `count` is given."""
    if not isinstance(value, Mapping) or not value:
        missing = " Is its return missing?" if value is None else ""
        raise DataError(f"{called}: the function gave {type(value).__name__}, a dict of columns was expected.{missing}")
    columns = {str(name): as_column(called, str(name), one) for name, one in value.items()}
    lengths = {name: len(one) for name, one in columns.items()}
    if len(set(lengths.values())) > 1 or (count is not None and set(lengths.values()) != {count}):
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        wanted = "as many rows each" if count is None else f"{count} rows, as many as it was given,"
        raise DataError(
            f"{called}: the function gave columns of {listed} rows; {wanted} were expected. filter leaves rows out, "
            "flat_map makes several of one"
        )
    return columns


def as_column(called: str, name: str, value: Any) -> Column:
    """A column of arrays, tensors, lists, or a series."""
    if isinstance(value, Ragged):
        return value
    if is_tensor(value):
        value = value.detach().cpu().numpy()
    elif hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if not isinstance(value, np.ndarray | list | tuple):
        raise DataError(f"{called}: column {name!r} is a {type(value).__name__}; an array or list was expected")
    if isinstance(value, np.ndarray) and value.dtype.kind in _PLAIN:
        if not value.ndim:
            raise DataError(f"{called}: column {name!r} is a single value; one per row was expected")
        return value
    listed = value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "US" else list(value)
    if not listed:
        return np.zeros(0, np.float32)
    texts = [one is None or isinstance(one, str | bytes) for one in listed]
    if all(texts):
        return Ragged.of(listed)
    try:
        lists = [np.asarray(one.detach().cpu() if is_tensor(one) else one) for one in listed]
        lists = [np.asarray(np.nan) if one.dtype == object and one.ndim == 0 else one for one in lists]
        if len({one.shape for one in lists}) == 1:
            array = np.stack(lists)
        elif all(one.ndim == 1 for one in lists):
            common = np.result_type(*lists)
            return Ragged.of([one.astype(common) for one in lists])
        else:
            raise TypeError
        if array.dtype.kind not in _PLAIN:
            raise TypeError
        return array
    except (TypeError, ValueError):
        kinds = sorted({type(one).__name__ for one in listed})
        raise DataError(
            f"{called}: the entries of column {name!r} are of types {', '.join(kinds[:4])}: numbers, texts, or arrays "
            "were expected, all of one kind"
        ) from None


def empty(kind: Kind) -> Column:
    """A column of this kind without rows."""
    if kind.ragged:
        dtype = np.uint8 if kind.dtype == TEXT else np.dtype(kind.dtype)
        return Ragged(np.zeros(1, np.int64), np.zeros(0, dtype), text=kind.dtype == TEXT)
    return np.zeros((0, *kind.shape), kind.dtype)


def fitted_to(called: str, columns: Columns, kinds: Iterable[tuple[str, Kind]]) -> Columns:
    """The columns in the kinds that the first rows showed; `DataError` where a later one does not fit in."""
    wanted = dict(kinds)
    if columns.keys() != wanted.keys():
        differ = ", ".join(sorted(columns.keys() ^ wanted.keys()))
        raise DataError(f"{called}: the function gives other columns for some rows than for the first ones ({differ})")
    return {name: _fitted(called, name, columns[name], kind) for name, kind in wanted.items()}


def _fitted(called: str, name: str, column: Column, kind: Kind) -> Column:
    own = kind_of_column(column)
    if own == kind:
        return column
    if not len(column):
        return empty(kind)
    if isinstance(column, Ragged) and kind.ragged and not column.text and kind.dtype != TEXT:
        if np.can_cast(column.values.dtype, kind.dtype, "same_kind"):
            return Ragged(column.offsets, column.values.astype(kind.dtype))
    elif not isinstance(column, Ragged) and kind.ragged and kind.dtype != TEXT and column.ndim == 2:
        return Ragged.of([row.astype(kind.dtype) for row in column])
    elif not isinstance(column, Ragged) and own.shape == kind.shape and np.can_cast(own.dtype, kind.dtype, "same_kind"):
        return column.astype(kind.dtype)
    raise DataError(
        f"{called}: column {name!r} holds {own} in some rows, but {kind} in the first ones: let the function give one "
        "kind always, for instance by .astype('float32')"
    )


def _described(value: Any) -> str:
    if not isinstance(value, Mapping):
        return type(value).__name__
    some = [f"{name}: {getattr(one, 'dtype', type(one).__name__)}" for name, one in list(value.items())[:8]]
    return ", ".join(some)
