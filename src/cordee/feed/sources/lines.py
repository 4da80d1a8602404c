"""Text files as rows: one per line, or one per file; in any encoding, as UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Ragged, Schema
from cordee.feed.places import Place
from cordee.feed.sources.compressed import BLOCK, opened
from cordee.feed.sources.kinds import TEXTS
from cordee.feed.sources.labels import check_label, label_kind, label_of
from cordee.feed.sources.seam import ON_ERROR, Chunk, Fault

LONGEST = 1 << 30
"""Bytes of a line."""
_NEWLINE, _RETURN = 10, 13
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_WIDE = ("utf-16", "utf-32")
"""Encodings in which a byte that looks like the end of a line may be part of a character."""


@dataclass(frozen=True)
class LineReader:
    """Reads text files, gzip'ed or not; the column `text` has a line, or a whole file, per row."""

    per: str = "line"
    encoding: str = "utf-8"
    label: str | None = None
    """Which folder's name is the class of all rows of a file; None: there is no label."""
    classes: tuple[str, ...] = ()
    """The classes in the order of their numbers; none given: those found, sorted."""
    on_error: str = "stop"

    endings = (".txt", ".txt.gz", ".text")
    in_process = False

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        check_label(self.label)
        for name, known in (("per", ("line", "file")), ("on_error", ON_ERROR)):
            if (value := getattr(self, name)) not in known:
                raise DataError(f"{name}={value!r}: choose one of {', '.join(known)}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise DataError(
                f"encoding={self.encoding!r} is not known to Python: 'utf-8', 'latin-1' or 'cp1252', for instance"
            ) from None

    @property
    def key(self) -> str:
        """What a row is, how it is encoded and labelled."""
        encoding = codecs.lookup(self.encoding).name
        return f"lines 1 {self.per} {encoding} {self.label} {self.classes} {self.on_error}"

    def schema(self, places: Sequence[Place]) -> Schema:
        """The text, and its class where files are labelled."""
        return {"text": TEXTS, **({} if self.label is None else {"y": label_kind(places, self.label, self.classes)})}

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The lines of a file from number `start` on; or the one row that the whole file is."""
        label = None if self.label is None else label_of(schema["y"], place, self.label)
        before = 0
        with opened(place) as file:
            for block in self._whole(file, place) if self.per == "file" else self._blocks(file, place):
                count = len(block.texts) + len(block.faults)
                if before + count > start:
                    texts = block.texts
                    if before < start:  # the rows that were read already, with the faults among them
                        texts = texts.slice(start - before - sum(row <= start for row, _ in block.faults), len(texts))
                    faults = tuple(Fault(place.shown, row, reason) for row, reason in block.faults if row > start)
                    columns: Columns = {"text": texts}
                    if label is not None:
                        columns["y"] = np.full(len(texts), label, np.int64)
                    yield Chunk(columns, len(texts), before + count, faults)
                before += count

    def _whole(self, file: BinaryIO, place: Place) -> Iterator[_Block]:
        raw = file.read()
        self._check_mark(raw, place)
        try:
            text = raw.decode(self.encoding).removeprefix("\ufeff").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            yield _Block(_none(), [self._fault(place, 1, error)])
            return
        yield _Block(Ragged.of([text]), [])

    def _blocks(self, file: BinaryIO, place: Place) -> Iterator[_Block]:
        """The lines of a file, those of a block at a time."""
        utf8, wide = self._is_utf8, self._wide
        decoder = codecs.getincrementaldecoder(self.encoding)() if wide else None
        rest, row, first = b"", 1, True
        while True:
            raw = file.read(BLOCK)
            if first:
                self._check_mark(raw, place)
            try:
                data = rest + (decoder.decode(raw, final=not raw).encode() if decoder is not None else raw)
            except UnicodeDecodeError as error:
                self._fault(place, row + rest.count(b"\n"), error, stop=True)
                raise
            if first and (utf8 or wide):
                data = data.removeprefix(codecs.BOM_UTF8)
            first = False
            end = len(data) if not raw else data.rfind(b"\n") + 1
            if not end and len(data) > LONGEST:
                raise DataError(
                    f"{place.shown}, row {row}: the line is longer than {LONGEST:,} bytes: is this a text file?"
                )
            if end:
                block = self._lines(data[:end], place, row)
                row += len(block.texts) + len(block.faults)
                yield block
            if not raw:
                return
            rest = data[end:]

    def _lines(self, data: bytes, place: Place, row: int) -> _Block:
        """The lines in these bytes, the first of which has this number."""
        try:
            if not self._wide:
                text = data.decode(self.encoding)
                data = data if self._is_utf8 else text.encode()
            return _Block(_split(data), [])
        except UnicodeDecodeError:
            good, faults = [], []
            for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), start=row):
                try:
                    good.append(line.decode(self.encoding).removesuffix("\r"))
                except UnicodeDecodeError as error:
                    faults.append(self._fault(place, number, error))
            return _Block(Ragged.of(good) if good else _none(), faults)

    def _fault(self, place: Place, row: int, error: UnicodeDecodeError, stop: bool = False) -> tuple[int, str]:
        reason = f"it is no text in {self.encoding}: {error.reason} at byte {error.start + 1}"
        if stop or self.on_error == "stop":
            advice = "encoding='latin-1' or 'cp1252' may fit, or leave such rows out and count them: on_error='skip'"
            raise DataError(f"{Fault(place.shown, row, reason)}. {advice}") from error
        return row, reason

    def _check_mark(self, raw: bytes, place: Place) -> None:
        """Refuse what says by its first bytes that it is in another encoding."""
        named = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), None)
        if named is not None and not self._wide:
            raise DataError(f"{place.shown} begins as {named} does, not as {self.encoding}: give encoding={named!r}")

    @property
    def _is_utf8(self) -> bool:
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig", "ascii")

    @property
    def _wide(self) -> bool:
        return codecs.lookup(self.encoding).name.startswith(_WIDE)


class _Block(NamedTuple):
    """Some lines of a file, and those among them that cannot be read: row and reason."""

    texts: Ragged
    faults: list[tuple[int, str]]


def _split(data: bytes) -> Ragged:
    """The lines in these bytes, without what ends them; Windows' ends too."""
    values = np.frombuffer(data if data.endswith(b"\n") else data + b"\n", np.uint8)
    ends = np.flatnonzero(values == _NEWLINE)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    returns = ends[(ends > starts) & (values[ends - 1] == _RETURN)] - 1
    lengths = ends - starts
    kept = np.ones(len(values), np.bool_)
    kept[ends] = False
    if len(returns):
        kept[returns] = False
        lengths[np.searchsorted(ends, returns)] -= 1
    return Ragged(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), values[kept], text=True)


def _none() -> Ragged:
    return Ragged(np.zeros(1, np.int64), np.zeros(0, np.uint8), text=True)
