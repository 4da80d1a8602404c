"""Rows of Python's: what an iterable or a dataset gives, written to a store once, and in an order from then on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Kind, Schema
from cordee.feed.places import Place
from cordee.feed.reading import SampleDraws, places_of_others, reading
from cordee.feed.sources.entries import column_of_entries, entry_of, fields_of, kinds_of_samples
from cordee.feed.sources.kinds import as_kinds
from cordee.feed.sources.known import version_of_dataset, version_of_factory
from cordee.feed.sources.seam import Chunk, Fault, check_on_error
from cordee.feed.stream import again

_LOOKED = 256
"""So many of the first rows tell which columns there are."""
_TRIED = 16
"""So many are read to see whether they draw random numbers."""
_AT_ONCE, _CHUNK_BYTES = 4096, 1 << 23
"""Rows, and bytes, of a chunk."""
_MOST_IN_A_ROW = 1000
"""After so many rows that cannot be read the error is raised: a source that is gone may give errors without an end."""


@dataclass(frozen=True)
class RowReader:
    """Reads the rows that a function, or a dataset, gives in this process."""

    given: Any
    by_number: bool = False
    """Whether it is a dataset that gives samples by their number."""
    names: tuple[str, ...] = ()
    """What the fields of tuples are called."""
    kinds: tuple[tuple[str, Kind], ...] = ()
    """Kinds of columns where they differ from those of the first rows."""
    version: str | None = None
    draws: bool = False
    """Whether samples of a dataset may draw random numbers, which are kept as they were drawn."""
    on_error: str = "stop"

    endings: tuple[str, ...] = field(default=(), init=False)
    in_process: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        """Check what was given."""
        check_on_error(self.on_error)

    @property
    def skips(self) -> bool:
        """Whether rows that cannot be read are left out."""
        return self.on_error == "skip"

    @property
    def key(self) -> str:
        """How fields become columns; what the rows are, their place says."""
        return f"rows 1 {self.names} {self.kinds}{' skip' if self.skips else ''}"

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The one place, with a mark of the content."""
        known = version_of_dataset if self.by_number else version_of_factory
        return (Place(self.called, "rows", 0, known(self.given, self.version)),)

    @property
    def called(self) -> str:
        """What messages call it."""
        name = getattr(self.given, "__qualname__", None) or type(self.given).__name__
        return f"rows of {name}"

    def schema(self, places: Sequence[Place]) -> Schema:
        """The kinds of the first rows, and those that were given."""
        return self._schema

    @cached_property
    def _schema(self) -> Schema:
        given = dict(self.kinds)
        first = _Rows(self, 0).take(_LOOKED)
        if not first:
            raise DataError(f"{self.called}: there are none; the function must begin anew each time that it is called")
        if self.skips:  # those of other fields are left out later, and counted
            first = [row for row in first if row.keys() == first[0].keys()]
        if unknown := given.keys() - first[0].keys():
            raise DataError(f"kinds: there is no field {sorted(unknown)[0]!r}; there are {', '.join(first[0])}")
        left = [{name: value for name, value in row.items() if name not in given} for row in first]
        found = kinds_of_samples(left, self.called)
        return {name: given.get(name) or found[name] for name in first[0]}

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The rows from number `start` on."""
        rows = _Rows(self, start)
        while True:
            before = rows.number
            taken = rows.take(_AT_ONCE, tuple(schema))
            if rows.number == before:
                return
            try:
                columns = self._columns(taken, schema, before)
            except DataError:
                if not self.skips:
                    raise
                taken = self._fitting(taken, schema, rows)
                columns = self._columns(taken, schema, before)
            yield Chunk(columns, len(taken), rows.number, rows.left_out())

    def _columns(self, taken: Sequence[Mapping[str, Any]], schema: Schema, before: int) -> Columns:
        return {
            name: column_of_entries([row[name] for row in taken], kind, name, self.called, before)
            for name, kind in schema.items()
        }

    def _fitting(self, taken: Sequence[dict[str, Any]], schema: Schema, rows: _Rows) -> list[dict[str, Any]]:
        """Those whose entries are of the columns' kinds."""
        good = []
        for row, number in zip(taken, rows.numbers, strict=True):
            try:
                self._columns([row], schema, number)
                good.append(row)
            except DataError as error:
                rows.leave_out(number, error)
        return good

    @cached_property
    def draws_others(self) -> bool:
        """Whether samples draw from Python's or NumPy's generator, by the first of them."""
        draws, before = SampleDraws(key=(0, 0)), places_of_others()
        left_out: tuple[type[Exception], ...] = (Exception,) if self.skips else ()
        with draws:
            if self.by_number:
                for number in range(min(_TRIED, len(self.given))):
                    draws.turn_to(number)
                    with suppress(*left_out):
                        self.given[number]
            else:
                with suppress(*left_out):
                    list(islice(self.given(), _TRIED))
        others = places_of_others() != before
        if self.by_number and not self.draws and (others or draws.used):
            raise DataError(
                f"{self.called}: its samples draw random numbers, which a store would keep as they were drawn once. "
                "Give the dataset without what is random, and do that in each epoch, rows(...).augment(function); or "
                "read it in each epoch, cordee.data.dataset(...). To keep what is drawn once: rows(..., draws=True)"
            )
        return others


class _Rows:
    """The rows that are given, from some number on; what one draws belongs to its number."""

    def __init__(self, reader: RowReader, start: int) -> None:
        self._reader, self._start = reader, start
        self.number = start
        """Of the row that comes next."""
        self.numbers: list[int] = []
        """Of the rows that were taken last."""
        self._faults: list[Fault] = []
        self._in_a_row = 0
        """So many could not be read, since the last that could."""
        self._made: Iterator[Any] | None = None
        self._draws: SampleDraws | None = None

    def take(self, most: int, names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """The next rows: so many, or as many as have some MiB together; each with the fields `names`, if given."""
        rows: list[dict[str, Any]] = []
        self.numbers, size = [], 0
        with reading():
            draws = self._begin()
            with draws:
                while len(rows) < most and size < _CHUNK_BYTES:
                    draws.turn_to(self.number)
                    try:
                        sample = self._next()
                    except StopIteration:
                        break
                    except Exception as error:
                        if self._reader.skips and self._in_a_row < _MOST_IN_A_ROW:
                            self.leave_out(self.number, error)
                            self.number += 1
                            continue
                        where = f"in row {self.number + 1} of {self._reader.called}"
                        vars(error).setdefault("__notes__", []).append(where)
                        raise
                    self.number += 1
                    try:
                        row = self._fields(sample, names)
                    except DataError as error:
                        if not self._reader.skips:
                            raise
                        self.leave_out(self.number - 1, error)
                        continue
                    self._in_a_row = 0
                    self.numbers.append(self.number - 1)
                    rows.append(row)
                    size += sum(one.nbytes if isinstance(one, np.ndarray) else len(one or "") for one in row.values())
        return rows

    def leave_out(self, number: int, error: Exception) -> None:
        """Count a row that cannot be used."""
        self._in_a_row += 1
        reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        self._faults.append(Fault(self._reader.called, number + 1, reason))

    def left_out(self) -> tuple[Fault, ...]:
        """Those since this was asked last, in their order."""
        faults, self._faults = sorted(self._faults, key=lambda one: one.row), []
        return tuple(faults)

    def _begin(self) -> SampleDraws:
        """Begin, if that was not done, and leave out the rows before the first that is wanted."""
        if self._draws is None:
            reader = self._reader
            self._draws = SampleDraws(others=reader.draws_others, key=(0, 0))
            if not reader.by_number:
                self._made = iter(reader.given())
                with self._draws:
                    for number in range(self._start):
                        self._draws.turn_to(number)
                        with suppress(*((Exception,) if reader.skips else ())):
                            next(self._made, None)
        return self._draws

    def _next(self) -> Any:
        if self._made is not None:
            return next(self._made)
        if self.number >= len(self._reader.given):
            raise StopIteration
        return self._reader.given[self.number]

    def _fields(self, sample: Any, names: tuple[str, ...]) -> dict[str, Any]:
        where = f"{self._reader.called}, row {self.number}"
        fields = fields_of(sample, self._reader.names, where)
        if names and (len(fields) != len(names) or any(name not in fields for name in names)):
            raise DataError(
                f"{where} has the fields {', '.join(fields) or 'none'}, the first rows have {', '.join(names)}: each "
                "row needs the same"
            )
        return {name: entry_of(value, where, name) for name, value in fields.items()}


def row_reader(
    given: Any,
    *,
    names: Sequence[str] = (),
    kinds: Mapping[str, Kind | str] | None = None,
    version: str | None = None,
    draws: bool = False,
    on_error: str = "stop",
) -> RowReader:
    """A reader of what a function, an iterable dataset or a map-style dataset gives."""
    if isinstance(given, DataLoader):
        raise DataError("a DataLoader makes batches; rows are needed: give loader.dataset")
    if isinstance(given, Iterator):
        raise DataError(
            f"a {type(given).__name__} can be read once, but rows are looked at before they are written: give the "
            "function that makes it, rows(function) instead of rows(function())"
        )
    by_number = hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, IterableDataset)
    if not by_number and isinstance(given, Iterable):
        given = again(given)
    if not by_number and not callable(given):
        raise DataError(f"rows({given!r}): a function that gives rows, or a dataset, was expected")
    kept = tuple(as_kinds(kinds or {}).items())
    return RowReader(given, by_number, tuple(names), kept, version, draws, on_error)
