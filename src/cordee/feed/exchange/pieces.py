"""What a map-reduce reads, cut into pieces: each is one task. The cut depends on the data alone, not on processes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from cordee.core.errors import DataError
from cordee.feed.exchange.pairs import VALUES, decode, encode, value_of
from cordee.feed.source import Source, map_tensors

FILE_BYTES = 8 << 20
"""Of a text file in one piece."""
ITEMS = 256
"""Of an iterable in one piece; of a list fewer, if it has fewer than so many times `LEAST`."""
LEAST = 64
ROWS = 4096
"""Of a source in one piece."""
_HEAD = struct.Struct("<I")


class Piece(NamedTuple):
    """A part of what is read, from `start` to `stop`: bytes of a file, items or rows."""

    name: str
    start: int
    stop: int


class Reading(Protocol):
    """How pieces are read. A value: every process has one."""

    def items(self, piece: Piece) -> Iterator[Any]:
        """What `map` is given, one by one."""
        ...


@dataclass(frozen=True)
class Lines:
    """Lines of text files; a piece has the lines that begin in it."""

    def items(self, piece: Piece) -> Iterator[str]:
        """Each line, without its end; bytes that are no UTF-8 are replaced."""
        with open(piece.name, "rb") as file:
            if piece.start:
                file.seek(piece.start - 1)
                file.readline()  # the rest of a line that began before
            at = file.tell() if piece.start else 0
            while at < piece.stop and (line := file.readline()):
                at += len(line)
                yield line.decode("utf-8", "replace").rstrip("\r\n")


@dataclass(frozen=True)
class Items:
    """Items that were written to a file, so that they need not lie in memory."""

    def items(self, piece: Piece) -> Iterator[Any]:
        """Each of them."""
        with open(piece.name, "rb") as file:
            file.seek(piece.start)
            while file.tell() < piece.stop:
                (length,) = _HEAD.unpack(file.read(_HEAD.size))
                yield decode(file.read(length))


@dataclass(frozen=True)
class Samples:
    """Samples of a source, in batches."""

    source: Source

    def items(self, piece: Piece) -> Iterator[Any]:
        """One batch, as the source gives it, with arrays in place of tensors."""
        to_array: Any = torch.Tensor.numpy
        ids = np.arange(piece.start, piece.stop, dtype=np.int64)
        yield map_tensors(to_array, self.source.gather(ids))


@dataclass(frozen=True)
class ChainRows:
    """Rows of a chain, in chunks, after all of its steps."""

    chain: Any
    steps: tuple[Any, ...] = field(default=())

    def items(self, piece: Piece) -> Iterator[Any]:
        """The rows of one file, in chunks: dicts of arrays."""
        from cordee.feed.steps.fit import applied
        from cordee.feed.steps.inprocess import raw_rows
        from cordee.feed.steps.user import given

        chain = self.chain
        for rows in raw_rows(chain.reader, [chain.places[piece.start]], chain.raw, chain.parts):
            if len(found := applied(self.steps, rows)):
                yield given(found.columns)


def pieces_of(source: Any, folder: str) -> tuple[Reading, list[Piece]]:
    """How a source is read, and its pieces; items of an iterable are written to `folder`."""
    if isinstance(source, str | Path):
        return Lines(), _pieces_of_file(source)
    if isinstance(source, Sequence) and source and all(isinstance(one, str | Path) for one in source):
        return Lines(), [piece for one in source for piece in _pieces_of_file(one)]
    if _is_chain(source):
        return _chain(source)
    if isinstance(source, Source):
        edges = range(0, len(source), ROWS)
        return Samples(source), [Piece("samples", at, min(at + ROWS, len(source))) for at in edges]
    if isinstance(source, Iterable):
        return Items(), _written(source, f"{folder}/items")
    raise DataError(
        f"source is {type(source).__name__}: expected paths of text files, a chain or source of cordee.data, or "
        "anything that gives items"
    )


def _pieces_of_file(given: str | Path) -> list[Piece]:
    path = Path(given).expanduser().absolute()
    if not path.is_file():
        raise DataError(
            f"{path} is not there: texts in a list are taken for paths of files. Give texts themselves as an iterator, "
            "iter(texts)"
        )
    size = path.stat().st_size
    return [Piece(str(path), at, min(at + FILE_BYTES, size)) for at in range(0, size, FILE_BYTES)]


def _written(source: Iterable[Any], path: str) -> list[Piece]:
    count = ITEMS
    if isinstance(source, Sized):
        count = max(1, min(ITEMS, len(source) // LEAST))
    pieces: list[Piece] = []
    with open(path, "wb") as file:
        start = number = 0
        for number, item in enumerate(source, start=1):
            try:
                data = encode(value_of(item))
            except DataError as error:
                raise DataError(
                    f"item {number} of the source cannot be given to other processes: {error.message}. Items may be "
                    f"{VALUES}; give names or numbers of the things, and read them in map"
                ) from error
            file.write(_HEAD.pack(len(data)) + data)
            if number % count == 0:
                pieces.append(Piece(path, start, file.tell()))
                start = file.tell()
        if file.tell() > start:
            pieces.append(Piece(path, start, file.tell()))
    return pieces


def _is_chain(source: Any) -> bool:
    return hasattr(source, "reader") and hasattr(source, "places") and hasattr(source, "steps")


def _chain(chain: Any) -> tuple[Reading, list[Piece]]:
    places = chain.places
    pieces = [Piece(place.key, number, number + 1) for number, place in enumerate(places)]
    return ChainRows(chain, chain.fitted_steps()), pieces
