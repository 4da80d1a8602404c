"""Rows of Python's: what an iterable or a dataset gives, written to a store once, and in an order from then on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from cordee.feed.sources.seam import Chunk
from cordee.feed.stream import again

_LOOKED = 256
"""So many of the first rows tell which columns there are."""
_TRIED = 16
"""So many are read to see whether they draw random numbers."""
_AT_ONCE, _CHUNK_BYTES = 4096, 1 << 23
"""Rows, and bytes, of a chunk."""


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

    endings: tuple[str, ...] = field(default=(), init=False)
    in_process: bool = field(default=True, init=False)

    @property
    def key(self) -> str:
        """How fields become columns; what the rows are, their place says."""
        return f"rows 1 {self.names} {self.kinds}"

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
        if unknown := given.keys() - first[0].keys():
            raise DataError(f"kinds: there is no field {sorted(unknown)[0]!r}; there are {', '.join(first[0])}")
        left = [{name: value for name, value in row.items() if name not in given} for row in first]
        found = kinds_of_samples(left, self.called)
        return {name: given.get(name) or found[name] for name in first[0]}

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The rows from number `start` on."""
        rows = _Rows(self, start)
        while taken := rows.take(_AT_ONCE, tuple(schema)):
            before = rows.number - len(taken)
            columns: Columns = {
                name: column_of_entries([row[name] for row in taken], kind, name, self.called, before)
                for name, kind in schema.items()
            }
            yield Chunk(columns, len(taken), rows.number)

    @cached_property
    def draws_others(self) -> bool:
        """Whether samples draw from Python's or NumPy's generator, by the first of them."""
        draws, before = SampleDraws(key=(0, 0)), places_of_others()
        with draws:
            if self.by_number:
                for number in range(min(_TRIED, len(self.given))):
                    draws.turn_to(number)
                    self.given[number]
            else:
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
        self._made: Iterator[Any] | None = None
        self._draws: SampleDraws | None = None

    def take(self, most: int, names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """The next rows: so many, or as many as have some MiB together; each with the fields `names`, if given."""
        rows: list[dict[str, Any]] = []
        size = 0
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
                        where = f"in row {self.number + 1} of {self._reader.called}"
                        vars(error).setdefault("__notes__", []).append(where)
                        raise
                    self.number += 1
                    row = self._fields(sample, names)
                    rows.append(row)
                    size += sum(one.nbytes if isinstance(one, np.ndarray) else len(one or "") for one in row.values())
        return rows

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
    return RowReader(given, by_number, tuple(names), tuple(as_kinds(kinds or {}).items()), version, draws)
