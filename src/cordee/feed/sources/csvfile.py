"""How CSV files are written, and one such file as a stream of UTF-8: decompressed, without its byte order mark."""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, cast

from cordee.core.errors import DataError
from cordee.feed.places import Place
from cordee.feed.sources.arrow import pyarrow
from cordee.feed.sources.csvrows import Data, lines_in, rows
from cordee.feed.sources.seam import Unreadable

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
ENDINGS = tuple(f"{ending}{more}" for ending in (".csv", ".tsv") for more in ("", *COMPRESSED))
LONGEST_ROW = 64 << 20
"""A row of more bytes is taken for a quote that is never closed."""

_BOMS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_NOT_TEXT = {
    b"PK\x03\x04": "a zip archive or an Excel workbook: unpack it, or save it as CSV",
    b"PAR1": "a Parquet file: cordee.data.parquet reads it",
    b"\x1f\x8b": "compressed by gzip: let its name end in .gz",
    b"BZh": "compressed by bzip2: let its name end in .bz2",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: let its name end in .zst",
    b"\xfd7zXZ": "compressed by xz: unpack it, or compress it by zstd (.zst)",
}


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written."""

    separator: str = ""
    """One character between fields. Empty: a tab in files that end in `.tsv`, else a comma."""
    quote: str = '"'
    """The character around fields in which a separator or a line break stands; empty for none."""
    decimal: str = "."
    """The character before the fraction of a number."""
    encoding: str = "utf-8"
    """Of files that begin with a byte order mark of UTF-16, that mark is believed."""
    dates: tuple[str, ...] = ()
    """Forms of dates besides ISO 8601, as `strptime` writes them: `("%d.%m.%Y", "%m/%d/%Y %H:%M")`."""

    def __post_init__(self) -> None:
        """Check each field."""
        for name in ("separator", "quote", "decimal"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value.encode()) != 1:
                if value == "" and name != "decimal":
                    continue
                raise DataError(f"{name}={value!r} of a CSV file is not one character of ASCII")
        if self.separator in ("\n", "\r") or (self.separator and self.separator in (self.quote, self.decimal)):
            raise DataError(
                f"separator={self.separator!r} cannot be a line break, nor the same as quote={self.quote!r} or "
                f"decimal={self.decimal!r}"
            )
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise DataError(f"encoding={self.encoding!r} is not known to Python: 'utf-8', 'latin-1', ...") from None
        object.__setattr__(self, "dates", (self.dates,) if isinstance(self.dates, str) else tuple(self.dates))

    def separator_of(self, place: Place) -> str:
        """What stands between the fields of a file."""
        tabs = ".tsv" in place.name.lower()
        return self.separator or ("\t" if tabs else ",")


class Head(NamedTuple):
    """What a file begins with."""

    names: tuple[str, ...]
    data: int
    """The byte its rows of data begin at."""


def opened(place: Place, dialect: Dialect, start: int = 0) -> BinaryIO:
    """The file's bytes in UTF-8 from `start` on; plain ones are not read up to there."""
    raw = place.open()
    begin = raw.read(6)
    raw.seek(0)
    packing = next((name for ending, name in COMPRESSED.items() if place.name.lower().endswith(ending)), None)
    if packing is None and (kind := next((word for mark, word in _NOT_TEXT.items() if begin.startswith(mark)), None)):
        raw.close()
        raise Unreadable(f"the file is no CSV but {kind}", place)
    stream: Any = raw
    if packing is not None:
        stream = pyarrow().CompressedInputStream(pyarrow().PythonFile(raw, mode="r"), packing)
        begin = b"" if dialect.encoding == "utf-8" else begin
    encoding = _BOMS.get(begin[:2], dialect.encoding)
    if codecs.lookup(encoding).name not in ("utf-8", "ascii", "utf-8-sig"):
        stream = _Recoded(stream, encoding, place)
    elif packing is None:
        raw.seek(start)
        return raw
    left = start
    while left and (got := read(stream, min(left, 1 << 20), place)):
        left -= len(got)
    return cast(BinaryIO, stream)


def read(stream: BinaryIO, size: int, place: Place) -> bytes:
    """So many bytes; fewer at the end of the file only."""
    try:
        data = stream.read(size)
        if len(data) == size or not data:
            return data
        parts = [data]
        while size - sum(map(len, parts)) and (data := stream.read(size - sum(map(len, parts)))):
            parts.append(data)
        return b"".join(parts)
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, UnicodeError):
            raise Unreadable(f"the file is not in its encoding ({error}): Dialect(encoding=...)", place) from None
        raise Unreadable(f"the file is damaged ({error}): fetch it again", place) from None


def head_of(block: Data, names: tuple[str, ...], separator: str, quote: str, *, final: bool) -> Head | None:
    """Names of the columns and where rows of data begin; None if no row is there. `names`: the file has no header.

    `final`: the block ends where the file does, so its last row is whole.
    """
    begin = len(codecs.BOM_UTF8) if block.startswith(codecs.BOM_UTF8) else 0
    text = block[begin:]
    for row in rows(text, separator.encode(), quote.encode(), final=final):
        line = text[row.start : row.stop]
        if line.strip() and not re.fullmatch(rb"(?i)sep=.", line.strip()):  # what Excel writes for itself
            if names:
                return Head(names, begin + row.start)
            return Head(_names(line, separator, quote), begin + row.stop)
    return None


def lines_before(place: Place, dialect: Dialect, offset: int, known: tuple[int, int] = (0, 0)) -> int:
    """How many lines end before a byte; `known`: a byte before it, and the lines before that one."""
    stream, count, before = opened(place, dialect, known[0]), known[1], b""
    with stream:
        left = offset - known[0]
        while left > 0 and (data := read(stream, min(left, 1 << 20), place)):
            count += lines_in(data) - (before == b"\r" and data[:1] == b"\n")
            before, left = data[-1:], left - len(data)
    return count


def _names(line: Data, separator: str, quote: str) -> tuple[str, ...]:
    """Of a header row; a column without a name (as pandas writes its index) is called by its place."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    given = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_ROW))
    fields: list[str] = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator, **given))
    return tuple(re.sub(r"\s+", " ", name.strip()) or f"column_{at}" for at, name in enumerate(fields, 1))


class _Recoded(io.RawIOBase):
    """A stream in another encoding as UTF-8."""

    def __init__(self, stream: Any, encoding: str, place: Place) -> None:
        self._stream, self._place = stream, place
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready, self._ended = b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._ready and not self._ended:
            data = self._stream.read(1 << 20)
            self._ended = not data
            self._ready = self._decoder.decode(data, final=self._ended).encode()
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
