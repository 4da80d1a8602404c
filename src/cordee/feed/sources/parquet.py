"""Parquet files: row groups, decoded by pyarrow in parts of some MiB, and only the columns that are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import TEXT, Columns, Kind, Schema, taken
from cordee.feed.places import Place
from cordee.feed.sources.arrow import kind_of, no_rows, pyarrow, sorted_out
from cordee.feed.sources.folders import row_of_folders, types_in_folders
from cordee.feed.sources.seam import END, Chunk, Fault, Unreadable, check_on_error
from cordee.feed.sources.types import TypePairs, check_names, other_columns, with_types
from cordee.feed.threads import threads_here

CHUNK = 8 << 20
"""Bytes of a row group, before decoding, that are decoded at a time: fewer cost calls, more of them memory."""

_BUFFER = 256 << 10
"""Bytes of each column that are read at a time. Without a bound, that is all of a column in a row group."""
_DICTIONARY = 64 << 10
"""Bytes of a dictionary, packed, that count as few."""


class _Footer(NamedTuple):
    """What the end of a file says of its columns."""

    place: Place
    kinds: dict[str, Any]
    missing: frozenset[str]
    """Whole numbers of which some are missing, as far as the file says."""


@dataclass(frozen=True)
class ParquetReader:
    """Reads Parquet files. What names of folders say (`year=2024/`) are columns too, where no file has them itself."""

    columns: tuple[str, ...] = ()
    """Those that are wanted; empty for all."""
    types: TypePairs = ()
    on_error: str = "stop"
    chunk: int = CHUNK
    in_process: ClassVar[bool] = False
    lets_go: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    def __post_init__(self) -> None:
        """Check what was given."""
        check_on_error(self.on_error)

    @property
    def key(self) -> str:
        """All that changes the rows."""
        return f"parquet 1 {self.columns} {self.types} {self.on_error}"

    def schema(self, places: Sequence[Place]) -> Schema:
        """By the footers of all files, which say where values are missing too; no row is read."""
        folders = types_in_folders(places)
        with ThreadPoolExecutor(8, "look") as pool:
            footers = [one for one in pool.map(lambda place: self._footer(place, folders), places) if one is not None]
        if not footers:
            raise DataError(f"none of {len(places)} files is a Parquet file, {places[0].shown} for instance")
        first = footers[0]
        names = self.columns or tuple(first.kinds)
        check_names(names, list(first.kinds), "columns")
        fitting = []
        for footer in footers:
            if (wrong := other_columns(list(footer.kinds), names, only=not self.columns)) is None:
                fitting.append(footer)
            elif self.on_error == "stop":
                raise DataError(f"{footer.place.shown}: {wrong}, as {first.place.shown} has. {_HELP}")
        return with_types({name: self._kind(name, fitting) for name in names}, self.types)

    def edges(self, place: Place, schema: Schema) -> Sequence[int]:
        """Where row groups begin. If rows may be left out, the number of a row depends on those above it."""
        if self.on_error == "skip":
            return ()
        with _opened(place) as file:
            rows = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        return [0, *accumulate(rows)]

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """Parts of row groups; `start` is a row."""
        try:
            yield from self._chunks(place, schema, start)
        except Unreadable as error:
            if self.on_error == "stop":
                raise
            yield Chunk(no_rows(schema), 0, END, (Fault(place.shown, error.row, error.reason),))

    def _chunks(self, place: Place, schema: Schema, start: int) -> Iterator[Chunk]:
        if start >= END:
            return
        with _opened(place, schema) as file:
            there = file.schema_arrow.names
            wrong = other_columns([*there, *dict(place.folders)], list(schema), only=not self.columns)
            if wrong is not None:
                raise Unreadable(wrong, place)
            begin, told = 0, row_of_folders(place, schema, there)
            inside = {name: kind for name, kind in schema.items() if name not in told}
            for number in range(file.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                if begin + rows > start:
                    for at, table in self._parts(file, number, begin, inside, place):
                        skipped = min(max(0, start - at), table.num_rows)
                        if table.num_rows > skipped:
                            chunk = self._chunk(table.slice(skipped), inside, at + skipped, place)
                            yield _with_folders(chunk, told, schema) if told else chunk
                begin += rows

    def _parts(self, file: Any, number: int, begin: int, schema: Schema, place: Place) -> Iterator[tuple[int, Any]]:
        """A row group in parts, each with its first row."""
        group = file.metadata.row_group(number)
        parts = [group.column(at) for at in range(group.num_columns)]
        size = sum(one.total_uncompressed_size for one in parts if one.path_in_schema.split(".")[0] in schema)
        step = max(1, -(-group.num_rows // max(1, round(size / self.chunk))))  # no small rest
        threaded = threads_here() > 1  # of Arrow: beside several threads of ours they would wait for a core
        batches = file.iter_batches(step, row_groups=[number], columns=list(schema), use_threads=threaded)
        with _naming(place, begin + 1):
            for batch in batches:
                yield begin, batch
                begin += batch.num_rows

    def _chunk(self, table: Any, schema: Schema, at: int, place: Place) -> Chunk:
        columns, rows, bad = sorted_out(table, schema)
        faults = tuple(Fault(place.shown, at + row + 1, reason) for row, reason in bad)
        if faults and self.on_error == "stop":
            raise DataError(f"{faults[0]}. {_HELP}")
        return Chunk(columns, rows, at + table.num_rows, faults)

    def _footer(self, place: Place, folders: Mapping[str, Any]) -> _Footer | None:
        try:
            with _opened(place) as file:
                kinds = {field.name: field.type for field in file.schema_arrow}
                wanted = self.columns or tuple(kinds)
                missing = _missing(file, [name for name in wanted if name in kinds])
                told = {name: value for name, value in place.folders if name not in kinds}
                missing |= {name for name, value in told.items() if value is None}
                return _Footer(place, kinds | {name: folders[name] for name in told}, missing)
        except Unreadable:
            if self.on_error == "stop":
                raise
            return None

    def _kind(self, name: str, footers: Sequence[_Footer]) -> Kind:
        given = dict(self.types).get(name)
        if given is not None:
            return given
        missing = any(name in footer.missing for footer in footers)
        found = {footer.place.shown: kind_of(name, footer.kinds[name], missing=missing) for footer in footers}
        kinds = [kind for kind in found.values() if kind.raw != "null"]
        if not kinds:
            return next(iter(found.values()))
        if len(set(kinds)) == 1 and len(set(map(_family, kinds))) == 1:
            return kinds[0]
        if all(_family(kind) == "number" for kind in kinds):
            return Kind(np.result_type(*(kind.dtype for kind in kinds)).name)
        first, *others = found.items()
        other = next(one for one in others if one[1] != first[1] or _family(one[1]) != _family(first[1]))
        raise DataError(
            f"column {name} is {first[1].raw} in {first[0]} and {other[1].raw} in {other[0]}: say what it is, such as "
            f"types={{{name!r}: 'text'}}, or choose others by columns=[...]"
        )


_HELP = (
    "Fix the file, say what a column is by types={'name': 'float64'}, or leave such rows out and count them by "
    "on_error='skip'"
)


def _family(kind: Kind) -> str:
    """What may be put together: numbers are not points in time, nor text."""
    if kind.dtype == TEXT or kind.ragged or kind.shape:
        return str(kind)
    return "time" if kind.raw.startswith(("timestamp", "date", "time", "duration")) else "number"


def _with_folders(chunk: Chunk, told: Columns, schema: Schema) -> Chunk:
    """With what the folders of the file say, in each row."""
    same = np.zeros(chunk.rows, np.int64)
    columns = chunk.columns | {name: taken(one, same) for name, one in told.items()}
    return chunk._replace(columns={name: columns[name] for name in schema})


def _missing(file: Any, names: Sequence[str]) -> frozenset[str]:
    """Columns of which some values are missing, by the counts in the footer."""
    wanted, found = set(names), set()
    metadata = file.metadata
    leaves = [at for at in range(metadata.num_columns) if metadata.schema.column(at).path in wanted]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in leaves:
            statistics = group.column(at).statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                found.add(metadata.schema.column(at).path)
    return frozenset(found)


def _repeated(metadata: Any, schema: Schema) -> list[str]:
    """Columns of few different texts, which are read as numbers into a list of these: a seventh of the time."""
    found = []
    for at in range(metadata.num_columns if metadata.num_row_groups else 0):
        name = metadata.schema.column(at).path
        groups = (metadata.row_group(number).column(at) for number in range(metadata.num_row_groups))
        if name in schema and schema[name].dtype == TEXT and all(map(_is_repeated, groups)):
            found.append(name)
    return found


def _is_repeated(column: Any) -> bool:
    begin, end = column.dictionary_page_offset, column.data_page_offset
    return column.physical_type == "BYTE_ARRAY" and bool(begin) and 0 < end - begin < _DICTIONARY


@contextmanager
def _opened(place: Place, schema: Schema | None = None) -> Iterator[Any]:
    """With a schema, to read its rows."""
    from pyarrow import parquet

    source = place.url if place.url.startswith("/") else place.open()
    with _naming(place, 1):
        file = parquet.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER)
        if names := _repeated(file.metadata, schema or {}):
            file = parquet.ParquetFile(
                source, pre_buffer=False, buffer_size=_BUFFER, metadata=file.metadata, read_dictionary=names
            )
    try:
        yield file
    finally:
        file.close(force=True)


@contextmanager
def _naming(place: Place, row: int) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{place.shown} is not there any more: it was when the data was looked at") from None
    except PermissionError:
        raise DataError(f"no permission to read {place.shown}: give this user the right to (chmod, chown)") from None
    except (OSError, pyarrow().ArrowInvalid) as error:
        reason = str(error).splitlines()[0]
        raise Unreadable(f"the file is no Parquet, or cut short or damaged ({reason})", place, row) from None
