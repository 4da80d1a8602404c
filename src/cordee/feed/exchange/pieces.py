"""Pieces of what a map-reduce reads, each of which is one task: lines of text files, and items that were written down.

Nothing heavy is imported here: processes that count words start without PyTorch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol

from cordee.feed.exchange.pairs import decode
from cordee.feed.places import Place
from cordee.feed.sources.compressed import opened

HEAD = struct.Struct("<I")
"""The length of an item, before its bytes."""


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
    """Lines of text files, here or far, also gzip'ed; a piece has the lines that begin in it."""

    places: Mapping[str, Place]
    """By the name of their pieces."""

    def items(self, piece: Piece) -> Iterator[str]:
        """Each line, without its end; bytes that are no UTF-8 are replaced."""
        place = self.places[piece.name]
        # What is packed in a file is longer than the file: it is one piece.
        stop = inf if (piece.start, piece.stop) == (0, place.size) else piece.stop
        with opened(place) as file:
            if piece.start:
                file.seek(piece.start - 1)
                file.readline()  # the rest of a line that began before
            at = file.tell() if piece.start else 0
            while at < stop and (line := file.readline()):
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
                (length,) = HEAD.unpack(file.read(HEAD.size))
                yield decode(file.read(length))
