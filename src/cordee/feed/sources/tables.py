"""Tables that lie in this process: frames of pandas, tables of Arrow, data sets of Hugging Face, arrays by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import Column, Columns, Kind, Ragged, Schema, kind_of_column, slice_of
from cordee.feed.places import Place
from cordee.feed.sources.arrow import kind_of, plain_array, pyarrow, sorted_out
from cordee.feed.sources.seam import Chunk, Fault, Reader, check_on_error
from cordee.feed.sources.types import TypePairs, check_names, with_types

CHUNK = 4 << 20
"""Bytes of rows that are given at a time."""


class Table(Protocol):
    """Rows by number, in columns of ours or of Arrow's."""

    rows: int
    nbytes: int

    def kinds(self) -> dict[str, Any]:
        """By column its `Kind`, or the type of Arrow's and whether any of it is missing."""
        ...

    def part(self, start: int, stop: int, names: Sequence[str]) -> Mapping[str, Any]:
        """Columns of some rows."""
        ...


@dataclass(frozen=True)
class TableReader:
    """Reads a table that lies in this process."""

    table: Table = field(repr=False, compare=False)
    columns: tuple[str, ...] = ()
    types: TypePairs = ()
    on_error: str = "stop"
    in_process: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Check what was given."""
        check_on_error(self.on_error)

    @property
    def key(self) -> str:
        """All that changes the rows, but for the table: its place has a mark of that."""
        return f"table 1 {self.columns} {self.types} {self.on_error}"

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """One, marked with a digest of all rows: 1 GB takes about a second."""
        place = Place("memory:table", "table", self.table.nbytes, "")
        return (Place(place.url, place.key, place.size, content_of(self, place)),)

    def schema(self, places: Sequence[Place]) -> Schema:
        """The columns of the table."""
        found = self.table.kinds()
        names = self.columns or tuple(found)
        check_names(names, list(found), "columns")
        given = dict(self.types)
        kinds = {name: given.get(name) or _kind(name, found[name]) for name in names}
        return with_types(kinds, self.types)

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """Some rows at a time; `start` is a row."""
        step = max(1, self.table.rows * CHUNK // max(1, self.table.nbytes))
        for at in range(start, self.table.rows, step):
            stop = min(at + step, self.table.rows)
            columns, rows, bad = _sorted_out(self.table.part(at, stop, list(schema)), schema, stop - at)
            faults = tuple(Fault("table", at + row + 1, reason) for row, reason in bad)
            if faults and self.on_error == "stop":
                raise DataError(
                    f"{faults[0]} (rows count from 1). Say what the column is by types={{'name': 'float64'}}, or leave "
                    "such rows out and count them by on_error='skip'"
                )
            yield Chunk(columns, rows, stop, faults)


def content_of(reader: Reader, place: Place) -> str:
    """A digest of all rows that a reader gives of a place, and of what they are."""
    schema = reader.schema([place])
    digest = hashlib.blake2b(repr([(name, str(kind)) for name, kind in schema.items()]).encode(), digest_size=16)
    for chunk in reader.chunks(place, schema):
        digest.update(f"{chunk.rows} {len(chunk.faults)}".encode())
        for column in chunk.columns.values():
            for part in (column.offsets, column.values) if isinstance(column, Ragged) else (column,):
                digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def table_of(given: Any) -> Table:
    """What a user gave, as a table."""
    kind = f"{type(given).__module__.partition('.')[0]}.{type(given).__name__}"
    if isinstance(given, Mapping) and given and all(_is_dataset(one) for one in given.values()):
        raise DataError(
            f"this is several data sets ({', '.join(map(str, given))}): give one of them, such as given['train']"
        )
    if isinstance(given, Mapping):
        return Held({str(name): _column(str(name), one) for name, one in given.items()})
    if kind == "pandas.DataFrame":
        return Held({str(name): _column(str(name), given.iloc[:, at]) for at, name in enumerate(given.columns)})
    if kind.startswith("polars.") and hasattr(given, "to_arrow"):
        given, kind = given.to_arrow(), "pyarrow.Table"
    if kind in ("pyarrow.Table", "pyarrow.RecordBatch"):
        return Held(dict(zip(given.schema.names, given.columns, strict=True)), given.schema.names)
    if _is_dataset(given):
        return HuggingFace(given)
    raise DataError(
        f"{type(given).__name__} is no table: give a frame of pandas, a table of Arrow, a Dataset of Hugging Face, or "
        "arrays by name: {'x': x, 'y': y}"
    )


class Held:
    """Columns in memory: arrays of NumPy, or of Arrow."""

    def __init__(self, columns: Mapping[str, Any], names: Sequence[str] | None = None) -> None:
        """All of the same length; `names` tells of names that came twice."""
        twice = sorted({name for name in names or () if list(names or ()).count(name) > 1})
        if not columns or twice:
            raise DataError(f"two columns are called {twice[0]!r}" if twice else "a table without a column has no rows")
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"columns differ in length ({', '.join(f'{a}: {b}' for a, b in lengths.items())})")
        self._columns = dict(columns)
        self.rows = next(iter(lengths.values()))
        self.nbytes = sum(_nbytes(column) for column in columns.values())

    def kinds(self) -> dict[str, Any]:
        """By column."""
        return {
            name: kind_of_column(column)
            if isinstance(column, np.ndarray | Ragged)
            else (column.type, column.null_count > 0)
            for name, column in self._columns.items()
        }

    def part(self, start: int, stop: int, names: Sequence[str]) -> Mapping[str, Any]:
        """Columns of some rows."""
        return {
            name: slice_of(column, start, stop)
            if isinstance(column := self._columns[name], np.ndarray | Ragged)
            else column.slice(start, stop - start)
            for name in names
        }


class HuggingFace:
    """A `datasets.Dataset`, through its own Arrow table: rows that it selected or shuffled come as it has them."""

    def __init__(self, dataset: Any) -> None:
        """Nothing is copied: the data set maps its files."""
        self._dataset = dataset.with_format("arrow")
        self.rows = len(dataset)
        self.nbytes = int(getattr(dataset, "size_in_bytes", None) or dataset.data.nbytes)

    def kinds(self) -> dict[str, Any]:
        """By column, as the features say; whether any is missing is looked up in the whole table."""
        table = self._dataset.data
        return {name: (table.column(name).type, table.column(name).null_count > 0) for name in table.column_names}

    def part(self, start: int, stop: int, names: Sequence[str]) -> Mapping[str, Any]:
        """Columns of some rows."""
        table = self._dataset[start:stop]
        return {name: table.column(name) for name in names}


def _column(name: str, given: Any) -> Any:
    """An array of NumPy's where it is numbers, else one of Arrow's."""
    if isinstance(given, Ragged):
        return given
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    values = given if isinstance(given, np.ndarray) else None
    if values is None and not isinstance(given, list | tuple):
        dtype = getattr(given, "dtype", None)
        if isinstance(dtype, np.dtype) or hasattr(given, "numpy") or hasattr(given, "__array__"):
            values = None if _of_pandas(dtype) else np.asarray(given)
    elif values is None and given and isinstance(given[0], int | float | bool | list | tuple | np.ndarray):
        try:
            values = np.asarray(given)
        except ValueError:  # lists of different lengths
            return Ragged.of(given)
    if values is not None and values.ndim == 0:
        raise DataError(f"column {name} is one number, not one per row")
    if values is not None and values.dtype.kind in "biuf":
        return values
    pa = pyarrow()
    try:
        return pa.array(given if values is None else values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        raise DataError(
            f"column {name} cannot be read: {str(error).splitlines()[0]}; make it numbers or text"
        ) from None


def _of_pandas(dtype: Any) -> bool:
    """Whether it is a type of pandas' own, which may have missing values that NumPy has not (Int64, category)."""
    return dtype is not None and not isinstance(dtype, np.dtype) and type(dtype).__module__.startswith("pandas")


def _kind(name: str, found: Any) -> Kind:
    return found if isinstance(found, Kind) else kind_of(name, found[0], missing=found[1])


def _sorted_out(part: Mapping[str, Any], schema: Schema, rows: int) -> tuple[Columns, int, list[tuple[int, str]]]:
    """Columns of ours stay as they are, unless the user gave them another type."""
    pa = pyarrow()
    own: dict[str, Column] = {}
    others: dict[str, Any] = {}
    for name, column in part.items():
        kind = schema[name]
        if not isinstance(column, np.ndarray | Ragged):
            others[name] = plain_array(column)
        elif kind_of_column(column) == kind:
            own[name] = column
        elif isinstance(column, np.ndarray) and column.ndim == 1 and not kind.shape:
            others[name] = pa.array(column, from_pandas=True)
        elif isinstance(column, np.ndarray) and column.shape[1:] == kind.shape:
            own[name] = column.astype(kind.dtype)
        else:
            raise DataError(
                f"column {name} is {kind_of_column(column)}, of which types={{{name!r}: {str(kind)!r}}} cannot be made"
            )
    bad: dict[int, str] = {}
    if others:
        table = pa.table(others)
        wanted = {name: schema[name] for name in others}
        found, left, reasons = sorted_out(table, wanted)
        bad = dict(reasons)
        own |= found
        rows_left = np.delete(np.arange(rows), list(bad))
        if bad:
            own |= {name: _taken(own[name], rows_left) for name in own if name not in others}
        rows = left
    return {name: own[name] for name in schema}, rows, sorted(bad.items())


def _taken(column: Column, rows: Any) -> Column:
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def _nbytes(column: Any) -> int:
    if isinstance(column, Ragged):
        return int(column.offsets.nbytes + column.values.nbytes)
    return int(column.nbytes)


def _is_dataset(given: Any) -> bool:
    return all(hasattr(given, name) for name in ("with_format", "column_names", "data", "features"))
