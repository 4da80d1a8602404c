"""Cuts what a map-reduce reads into pieces. The cut depends on the data alone, never on the number of processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from typing import Any

from cordee.core.errors import DataError
from cordee.feed.chain import Chain
from cordee.feed.data import Data
from cordee.feed.exchange.pairs import VALUES, encode, value_of
from cordee.feed.exchange.pieces import HEAD, Items, Lines, Piece, Reading
from cordee.feed.exchange.rowpieces import Samples, StoreRows
from cordee.feed.places import Place, resolve
from cordee.feed.source import Source
from cordee.feed.sources.compressed import is_packed
from cordee.feed.sources.lines import LineReader
from cordee.feed.store.opened import StoreSource, open_store

FILE_BYTES = 8 << 20
"""Of a text file in one piece."""
ITEMS, LEAST = 256, 64
"""Items of an iterable in one piece; of a list fewer, so that it has so many pieces."""
ROWS = 4096
"""Of a source in one piece."""


def pieces_of(source: Any, folder: str) -> tuple[Reading, list[Piece]]:
    """How a source is read, and its pieces; items of an iterable are written to `folder`."""
    if isinstance(source, str | Path):
        return _pieces_of_files([source])
    if isinstance(source, Sequence) and source and all(isinstance(one, str | Path) for one in source):
        return _pieces_of_files(source)
    if isinstance(source, Chain):
        return _pieces_of_chain(source)
    if isinstance(source, Data):
        raise DataError("source is a Data, which may have several sets: give one of them, such as data.train")
    if isinstance(source, StoreSource):
        return StoreRows(open_store(source.folder.path)), _pieces_of_rows(source.name, len(source))
    if isinstance(source, Source):
        return Samples(source), _pieces_of_rows("samples", len(source))
    if isinstance(source, Iterable):
        return Items(), _written(source, f"{folder}/items")
    raise DataError(
        f"source is {type(source).__name__}: expected paths of text files, a chain or source of cordee.data, or "
        "anything that gives items"
    )


def _pieces_of_files(given: Sequence[str | Path]) -> tuple[Reading, list[Piece]]:
    """Paths, URLs, patterns and folders, as readers of raw files take them."""
    places: dict[str, Place] = {}
    pieces: list[Piece] = []
    for one in given:
        try:
            found = resolve(one, LineReader.endings)
        except DataError as error:
            raise DataError(
                f"{error.message}. Texts are taken for paths of files: give texts themselves as an iterator, "
                "iter(texts)"
            ) from error
        for place in found:
            name = place.shown  # in messages; two URLs may differ in their queries alone
            while places.get(name, place).url != place.url:
                name += "'"
            places[name] = place
            each = max(1, place.size) if place.size > FILE_BYTES and is_packed(place) else FILE_BYTES
            cuts = range(0, place.size, each)
            pieces += [Piece(name, at, min(at + each, place.size)) for at in cuts]
    return Lines(places), pieces


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
            file.write(HEAD.pack(len(data)) + data)
            if number % count == 0:
                pieces.append(Piece(path, start, file.tell()))
                start = file.tell()
        if file.tell() > start:
            pieces.append(Piece(path, start, file.tell()))
    return pieces


def _pieces_of_rows(name: str, count: int) -> list[Piece]:
    return [Piece(name, at, min(at + ROWS, count)) for at in range(0, count, ROWS)]


def _pieces_of_chain(chain: Chain) -> tuple[Reading, list[Piece]]:
    """Rows of all of its sets, from the store that it makes of its files."""
    if chain.view.times != 1:
        raise DataError("source repeats its rows: leave repeat out, which is for training")
    store = chain._making(()).store()
    counts = chain._counts(store)
    return StoreRows(store), [piece for name, count in counts.items() for piece in _pieces_of_rows(name, count)]
