"""Bytes of CSV rows as columns, by pyarrow's parser; and which rows are to blame where it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cordee.feed.columns import TEXT, Columns, Kind, Schema
from cordee.feed.sources.arrow import no_rows, pyarrow, sorted_out
from cordee.feed.sources.csvfile import Dialect
from cordee.feed.sources.csvrows import Data, Row, fields_in, rows

Bad = tuple[int, str]
"""The line of a row that cannot be read, counted from 0 within its block, and why."""


@dataclass(frozen=True)
class Parser:
    """Parses rows of one file."""

    names: tuple[str, ...]
    """Its columns, in its order."""
    separator: str
    dialect: Dialect
    missing: tuple[str, ...]

    def guessed(self, data: Data) -> dict[str, Any]:
        """Columns by what the rows look like; those with another number of fields are left out."""
        pa = pyarrow()
        data = _ended(data)
        table = self._read(pa.py_buffer(data), None, skip=True)
        found = dict(zip(table.column_names, table.columns, strict=True))
        # What is not UTF-8 counts as text here. Numbers from 2**63 on count as floats, which do not hold them.
        texts = {name: pa.string() for name, column in found.items() if pa.types.is_binary(column.type)}
        texts |= {name: pa.string() for name, column in found.items() if _huge(column)}
        if not texts or not table.num_rows:
            return found
        try:
            again = self._read(pa.py_buffer(data), texts, skip=True)
        except pa.ArrowInvalid:  # not UTF-8
            return found | {name: pa.chunked_array([], pa.string()) for name in texts}
        for name in texts:
            whole = all(one is None or one.isdecimal() for one in again.column(name).to_pylist())
            if pa.types.is_binary(found[name].type):
                found[name] = again.column(name)
            elif whole:
                found[name] = again.column(name).cast(pa.uint64())
        return found

    def parsed(self, data: Any, schema: Schema) -> Any:
        """A table with the schema's columns; pyarrow's error if a row does not fit."""
        return self._read(data, {name: _arrow_type(kind) for name, kind in schema.items()})

    def columns(self, data: Data, schema: Schema, *, all_bad: bool) -> tuple[Columns, int, list[Bad]]:
        """Columns, how many rows they have, and the rows that are not in them; without `all_bad` maybe one alone."""
        if not data or data.isspace():
            return no_rows(schema), 0, []
        pa, data = pyarrow(), _ended(data)
        try:
            table = self.parsed(pa.py_buffer(data), schema)
        except pa.ArrowInvalid:
            return self._repaired(data, schema, all_bad)
        columns, count, reasons = sorted_out(table, schema)
        if not reasons:
            return columns, count, []
        places = [row for row in self._rows(data) if data[row.start : row.stop].strip(b"\r\n")]
        return columns, count, [(places[at].line, reason) for at, reason in reasons]

    def _rows(self, data: Data) -> Iterator[Row]:
        return rows(data, self.separator.encode(), self.dialect.quote.encode())

    def _repaired(self, data: Data, schema: Schema, all_bad: bool) -> tuple[Columns, int, list[Bad]]:
        """The same without the rows that pyarrow refuses: too many or too few fields, and what is found by halves."""
        separator, quote = self.separator.encode(), self.dialect.quote.encode()
        whole = [(row, data[row.start : row.stop]) for row in self._rows(data)]
        whole = [(row, text) for row, text in whole if text.strip()]
        good, bad = [], []
        for row, text in whole:
            count = fields_in(text, separator, quote)
            if count == len(self.names):
                good.append((row, text))
                continue
            bad.append((row.line, f"{_so_many(count)}, where the first row has {len(self.names)}"))
            if not all_bad:
                break

        def fits(start: int, stop: int) -> bool:
            return self._fits(b"".join(text for _, text in good[start:stop]), schema)

        refused = []
        for at in _refused(fits, 0, len(good)):
            refused.append(at)
            bad.append((good[at][0].line, self._reason(good[at][1], schema)))
            if not all_bad:
                break
        left_out = set(refused)
        stop = len(good) if all_bad or not refused else refused[0]
        good = [one for at, one in enumerate(good[:stop]) if at not in left_out]
        if not good:
            return no_rows(schema), 0, sorted(bad)
        table = self.parsed(pyarrow().py_buffer(b"".join(text for _, text in good)), schema)
        columns, count, reasons = sorted_out(table, schema)
        return columns, count, sorted(bad + [(good[at][0].line, reason) for at, reason in reasons])

    def _fits(self, data: Data, schema: Schema) -> bool:
        try:
            self.parsed(pyarrow().py_buffer(data), schema)
        except pyarrow().ArrowInvalid:
            return False
        return True

    def _reason(self, text: Data, schema: Schema) -> str:
        """Why one row with the right number of fields is refused."""
        try:
            text.decode()
        except UnicodeDecodeError as error:
            byte = text[error.start]
            return f"byte 0x{byte:02x} is not UTF-8: give its encoding, such as dialect=Dialect(encoding='latin-1')"
        for name, kind in schema.items():
            if not self._fits(text, {name: kind}):
                value = self.parsed(pyarrow().py_buffer(text), {name: Kind(TEXT, ragged=True)}).column(0)[0].as_py()
                word = kind.raw if _temporal(kind) else kind.dtype
                return f"column {name} is {value!r}, which is not {word}"
        return "it cannot be parsed"

    def _read(self, data: Any, types: dict[str, Any] | None, *, skip: bool = False) -> Any:
        from pyarrow import csv

        quote = self.dialect.quote
        return csv.read_csv(
            pyarrow().BufferReader(data),
            csv.ReadOptions(column_names=self.names, use_threads=False, block_size=max(1 << 10, len(data) + 1)),
            csv.ParseOptions(
                delimiter=self.separator,
                quote_char=quote or False,
                newlines_in_values=bool(quote),
                invalid_row_handler=(lambda row: "skip") if skip else None,
            ),
            csv.ConvertOptions(
                column_types=types,
                include_columns=None if types is None else list(types),
                null_values=list(self.missing),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                decimal_point=self.dialect.decimal,
                timestamp_parsers=[*self.dialect.dates, csv.ISO8601] if self.dialect.dates else None,
            ),
        )


def _huge(column: Any) -> bool:
    """Whether floats may have been whole numbers that only uint64 holds."""
    import pyarrow.compute as pc

    if not pyarrow().types.is_float64(column.type):
        return False
    most = pc.min_max(column)["max"].as_py()
    return most is not None and 2**63 <= most <= 2**64


def _ended(data: Data) -> Data:
    """With a line break at its end, without which pyarrow does not take a row that stands alone."""
    return data if data.endswith((b"\n", b"\r")) else data + b"\n"


def _so_many(count: int) -> str:
    return f"it has {count} field{'s' * (count != 1)}"


def _refused(fits: Callable[[int, int], bool], start: int, stop: int) -> Iterator[int]:
    """Which of some rows do not fit, by halves: few parses where few are wrong."""
    if start == stop or fits(start, stop):
        return
    if stop - start == 1:
        yield start
        return
    half = (start + stop) // 2
    yield from _refused(fits, start, half)
    yield from _refused(fits, half, stop)


def _temporal(kind: Kind) -> bool:
    return kind.dtype != TEXT and kind.raw.startswith(("timestamp", "date", "time"))


def _arrow_type(kind: Kind) -> Any:
    """What pyarrow parses for a column of this kind."""
    pa = pyarrow()
    if kind.dtype == TEXT:
        return pa.string()
    if kind.raw == "bool":
        return pa.bool_()
    if _temporal(kind):
        # A later entry may have fractions of a second where the first ones have none.
        moments = {
            "timestamp[s]": pa.timestamp("us"),
            "timestamp[ns]": pa.timestamp("ns"),
            "timestamp[s, tz=UTC]": pa.timestamp("us", "UTC"),
            "timestamp[ns, tz=UTC]": pa.timestamp("ns", "UTC"),
            "date32[day]": pa.date32(),
            "time32[s]": pa.time32("s"),
        }
        return moments[kind.raw]
    return pa.float32() if kind.dtype == "float16" else pa.from_numpy_dtype(kind.dtype)
