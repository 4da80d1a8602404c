"""CSV files: parsed by pyarrow in blocks that end where rows do, so that reading goes on at any block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Schema, joined
from cordee.feed.places import Place
from cordee.feed.sources.arrow import kind_of, no_rows, pyarrow
from cordee.feed.sources.csvfile import (
    ENDINGS,
    LONGEST_ROW,
    Dialect,
    Head,
    head_of,
    lines_before,
    opened,
    read,
)
from cordee.feed.sources.csvparse import Bad, Parser
from cordee.feed.sources.csvrows import Data, last_end, lines_in, unclosed
from cordee.feed.sources.seam import END, Chunk, Fault, Unreadable, check_on_error
from cordee.feed.sources.types import TypePairs, check_names, other_columns, with_types
from cordee.feed.threads import in_threads

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "\\N")
"""What stands for a missing value, unless the user says otherwise."""
BLOCK = 2 << 20
"""Bytes of a file that are parsed at a time: more of them leave the caches of a core, fewer cost calls."""
TOGETHER = 4
"""Blocks that make one chunk: what follows takes less time for each of its numbers when there are more of them."""
LOOKED = 1 << 20
"""Bytes at the beginning of each file that decide the types of columns."""
_EXACT = 2**53


class _Look(NamedTuple):
    """What the beginning of a file shows."""

    place: Place
    names: tuple[str, ...]
    types: Mapping[str, Any]
    missing: frozenset[str]
    wide: frozenset[str]
    """Columns with whole numbers that float64 does not hold exactly."""


class _Block(NamedTuple):
    """Whole rows of a file."""

    start: int
    stop: int
    """Its bytes."""
    rows: Data
    names: tuple[str, ...]
    unclosed: bool
    """The file ends with another row, in which a quote is opened that nothing closes."""


@dataclass(frozen=True)
class CsvReader:
    """Reads CSV files. Types are those that all files look like; a row that does not fit is an error, or is skipped."""

    names: tuple[str, ...] = ()
    """Of the columns, where files have no header."""
    types: TypePairs = ()
    columns: tuple[str, ...] = ()
    """Those that are wanted; empty for all."""
    missing: tuple[str, ...] = MISSING
    on_error: str = "stop"
    dialect: Dialect = field(default_factory=Dialect)
    block: int = BLOCK
    in_process: ClassVar[bool] = False
    lets_go: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = ENDINGS

    def __post_init__(self) -> None:
        """Check what was given."""
        check_on_error(self.on_error)

    @property
    def key(self) -> str:
        """All that changes the rows."""
        return f"csv 1 {self.names} {self.types} {self.columns} {self.missing} {self.on_error} {self.dialect}"

    def schema(self, places: Sequence[Place]) -> Schema:
        """By the first MiB of each file: a whole number becomes a float, and a number text, where any file needs it."""
        pyarrow()
        with ThreadPoolExecutor(8, "look") as pool:
            looks = [one for one in pool.map(self._looked, places) if one is not None]
        first = looks[0] if looks else self._look(places[0])
        names = self.columns or first.names
        check_names(names, first.names, "columns")
        fitting = []
        for look in looks:
            if (wrong := other_columns(look.names, names, only=not self.columns)) is None:
                fitting.append(look)
            elif self.on_error == "stop":
                raise DataError(f"{look.place.shown}: {wrong}, as {first.place.shown} has. {_HELP}")
        return with_types({name: self._kind(name, fitting) for name in names}, self.types)

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """Blocks of rows; `start` is a byte of the file (of what is packed in it)."""
        try:
            yield from _together(self._chunks(place, schema, start))
        except Unreadable as error:
            if self.on_error == "stop":
                raise
            yield Chunk(no_rows(schema), 0, END, (Fault(place.shown, error.row, error.reason),))

    def _chunks(self, place: Place, schema: Schema, start: int) -> Iterator[Chunk]:
        if start >= END:
            return
        counted = (0, 0)

        def parsed(block: _Block) -> tuple[_Block, Columns, int, list[Bad]]:
            parser = Parser(block.names, self.dialect.separator_of(place), self.dialect, self.missing)
            return block, *parser.columns(block.rows, schema, all_bad=self.on_error == "skip")

        for block, columns, rows, bad in in_threads(parsed, self._blocks(place, schema, start)):
            faults: tuple[Fault, ...] = ()
            if bad or block.unclosed:
                if block.unclosed:
                    bad = [*bad, (lines_in(block.rows), "a quote is opened in it and never closed")]
                counted = (block.start, lines_before(place, self.dialect, block.start, counted))
                faults = self._faults(place, counted[1], bad)
            if rows or faults:
                yield Chunk(columns, rows, block.stop, faults)

    def _blocks(self, place: Place, schema: Schema, start: int) -> Iterator[_Block]:
        """The rows of a file from a byte on, in blocks: each begins and ends with a row."""
        separator, quote = self.dialect.separator_of(place).encode(), self.dialect.quote.encode()
        head = self._head(place) if start else None
        offset, size, final, begin = start, self.block, False, 0
        pending: Data = b""
        with opened(place, self.dialect, start) as stream:
            while not final:
                block, pending = bytearray(pending[:size]), pending[size:]
                if len(block) < size:
                    block += read(stream, size - len(block), place)
                    final = len(block) < size
                if head is None and (head := self._begun(block, place, final)) is not None:
                    self._check(head, schema, place)
                    begin = head.data
                end = len(block)
                if not final:
                    end = begin + last_end(block[begin:] if begin else block, separator, quote) if head else 0
                    if end <= begin:  # no row ends in it: a larger one
                        size, pending = _grown(size, place, offset + begin), block + pending
                        continue
                assert head is not None
                start, offset, pending = offset + begin, offset + end, bytes(block[end:]) + pending
                del block[end:]  # in place: a copy of the rows would take a fiftieth of the time that parsing takes
                del block[:begin]
                rows, size, begin = len(block), self.block, 0
                left = unclosed(block, separator, quote) if final else rows
                del block[left:]
                yield _Block(start, offset, block, head.names, left < rows)

    def _faults(self, place: Place, lines: int, bad: Sequence[Bad]) -> tuple[Fault, ...]:
        faults = tuple(Fault(place.shown, lines + line + 1, reason) for line, reason in bad)
        if self.on_error == "stop":
            raise DataError(f"{faults[0]}. {_HELP}")
        return faults

    def _looked(self, place: Place) -> _Look | None:
        """None for a file that cannot be read at all, where such ones are skipped."""
        try:
            return self._look(place)
        except Unreadable:
            if self.on_error == "stop":
                raise
            return None

    def _look(self, place: Place) -> _Look:
        import pyarrow.compute as pc

        types = pyarrow().types
        block, head, final = self._beginning(place)
        parser = Parser(head.names, self.dialect.separator_of(place), self.dialect, self.missing)
        data = block[head.data :]
        if not final:
            data = data[: last_end(data, parser.separator.encode(), self.dialect.quote.encode())]
        if not data.strip():
            return _Look(place, head.names, {name: pyarrow().null() for name in head.names}, frozenset(), frozenset())
        found = parser.guessed(data)
        wide = set()
        for name, column in found.items():
            if types.is_int64(column.type) and column.null_count < len(column):
                ends = pc.min_max(column).as_py()
                if max(-ends["min"], ends["max"]) > _EXACT:
                    wide.add(name)
        missing = frozenset(name for name, column in found.items() if column.null_count)
        kinds = {name: column.type for name, column in found.items()}
        return _Look(place, head.names, kinds, missing, frozenset(wide))

    def _kind(self, name: str, looks: Sequence[_Look]) -> Any:
        given = dict(self.types)
        kind = _common([look.types[name] for look in looks])
        missing = any(name in look.missing for look in looks)
        if missing and name not in given and kind == pyarrow().int64():
            wide = next((look.place.shown for look in looks if name in look.wide), None)
            if wide is not None:
                raise DataError(
                    f"column {name} has missing values, and whole numbers beyond 2**53 ({wide}) that no float holds "
                    f"exactly: say what it is, such as types={{{name!r}: 'text'}}"
                )
        if name in given and (given[name].shape or (given[name].ragged and given[name].dtype != "text")):
            raise DataError(f"types={{{name!r}: {str(given[name])!r}}}: a field of CSV is one number or a text")
        return kind_of(name, kind, missing=missing)

    def _check(self, head: Head, schema: Schema, place: Place) -> None:
        wrong = other_columns(head.names, list(schema), only=not self.columns)
        if wrong is not None:
            raise Unreadable(f"{wrong}. {_HELP}" if self.on_error == "stop" else wrong, place)

    def _head(self, place: Place) -> Head:
        return _head(self.names, self.dialect, place)

    def _begun(self, block: Data, place: Place, final: bool) -> Head | None:
        return _begun(block, self.names, self.dialect, place, final)

    def _beginning(self, place: Place) -> tuple[bytes, Head, bool]:
        return _beginning(self.names, self.dialect, place)


def _together(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The same rows in fewer chunks; those before an error come before it."""
    group: list[Chunk] = []
    try:
        for one in chunks:
            group.append(one)
            if len(group) == TOGETHER:
                yield _joined(group)
                group = []
    except DataError:
        if group:
            yield _joined(group)
        raise
    if group:
        yield _joined(group)


def _joined(group: Sequence[Chunk]) -> Chunk:
    """One chunk of several that follow one another."""
    some = [one for one in group if one.rows] or [group[-1]]
    columns = {name: joined([one.columns[name] for one in some]) for name in some[0].columns}
    return Chunk(columns, sum(one.rows for one in group), group[-1].next, tuple(chain(*(one.faults for one in group))))


_HELP = (
    "Fix the file, say what a column is by types={'name': 'text'}, or leave such rows out and count them by "
    "on_error='skip'"
)


def _beginning(names: tuple[str, ...], dialect: Dialect, place: Place) -> tuple[bytes, Head, bool]:
    """The first bytes of a file, what they begin with, and whether that is all of it."""
    size = LOOKED
    with opened(place, dialect) as stream:
        block = b""
        while True:
            block += read(stream, size - len(block), place)
            final = len(block) < size
            head = _begun(block, names, dialect, place, final)
            if head is not None:
                return block, head, final
            size = _grown(size, place, 0)


@lru_cache(maxsize=4096)
def _head(names: tuple[str, ...], dialect: Dialect, place: Place) -> Head:
    return _beginning(names, dialect, place)[1]


def _begun(block: Data, names: tuple[str, ...], dialect: Dialect, place: Place, final: bool) -> Head | None:
    """What a file begins with; None if its first row is not in the block as a whole."""
    separator = dialect.separator_of(place)
    head = head_of(block, names, separator, dialect.quote, final=final)
    if head is None:
        if final:
            step = "remove it, or leave such files out and count them by on_error='skip'"
            raise Unreadable("the file is empty, where a header and rows are expected", place, next_step=step)
        return None
    if len(head.names) == 1 and not names:
        other = next((one for one in (",", ";", "\t", "|") if one in head.names[0] and one != separator), None)
        if other:
            raise Unreadable(
                f"the header is one column, {head.names[0][:60]!r}: give its separator, dialect={other!r}", place
            )
    if len(set(head.names)) < len(head.names):
        twice = Counter(head.names).most_common(1)[0][0]
        raise Unreadable(f"two columns are called {twice!r}: rename one of them", place)
    return head


def _grown(size: int, place: Place, offset: int) -> int:
    if size >= LONGEST_ROW:
        raise DataError(
            f"{place.shown}: the row at byte {offset} is longer than {LONGEST_ROW >> 20} MiB; is a quote opened there "
            "and never closed? If quotes have no meaning in this file: dialect=Dialect(quote='')"
        )
    return size * 2


def _common(kinds: Sequence[Any]) -> Any:
    """The type that all files' types fit in."""
    pa = pyarrow()
    found = {str(kind): kind for kind in kinds if not pa.types.is_null(kind)}
    if not found:
        return pa.null()
    if len(found) == 1:
        return next(iter(found.values()))
    if set(found) == {"int64", "double"}:
        return pa.float64()
    if set(found) <= {"timestamp[s]", "timestamp[ns]", "date32[day]"}:
        return found.get("timestamp[ns]", found.get("timestamp[s]"))
    return pa.string()
