"""What reads one form of raw data: the interface that every reader has."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Schema
from cordee.feed.places import Place

ON_ERROR = ("stop", "skip")
"""What becomes of a row that cannot be read: the error that names it, or it is left out and counted."""


END = 1 << 62
"""Where a file goes on of which nothing more can be read."""


def is_damage(error: DataError) -> bool:
    """Whether a file's content is at fault, not the way to it: then it may be left out."""
    cause = error.__cause__ or error.__context__
    return not isinstance(cause, OSError) or isinstance(cause, gzip.BadGzipFile)


def check_on_error(given: str) -> None:
    """`DataError` for anything but these words."""
    if given not in ON_ERROR:
        raise DataError(f"on_error={given!r} is not known: {' or '.join(map(repr, ON_ERROR))}")


@dataclass(frozen=True)
class Fault:
    """A row that cannot be read."""

    file: str
    row: int
    """Counted from 1, as an editor shows lines; of files without lines, from 1 too."""
    reason: str

    def __str__(self) -> str:
        """File, row, reason."""
        return f"{self.file}, row {self.row}: {self.reason}"


class Unreadable(DataError):
    """A file that is not of its form from some row on: nothing more of it can be read."""

    def __init__(self, reason: str, place: Place, row: int = 1, *, next_step: str = "") -> None:
        """The row is the first where that is not known."""
        super().__init__(f"{place.shown}, row {row}: {reason}", next_step=next_step)
        self.reason, self.row = reason, row


class Chunk(NamedTuple):
    """Some rows of a file."""

    columns: Columns
    rows: int
    next: int
    """Where the chunk after it begins, in the reader's own count: `chunks` goes on there if it is given as `start`."""
    faults: tuple[Fault, ...] = ()
    """Rows of it that were left out."""


class Reader(Protocol):
    """Reads files of one form in chunks of rows. A frozen value: processes of a build are sent it."""

    @property
    def key(self) -> str:
        """A text that differs between two readers that would make different rows of the same bytes."""
        ...

    @property
    def endings(self) -> tuple[str, ...]:
        """How names of its files end (`.csv`, `.csv.gz`): what it takes of a directory. Empty: all files there."""
        ...

    @property
    def in_process(self) -> bool:
        """Whether its rows lie in this process (a frame, a generator, a connection): only here can they be read.

        A build then calls `chunks` in the calling process. Its places name no files: their `mark` tells the content.
        """
        ...

    def schema(self, places: Sequence[Place]) -> Schema:
        """The columns that all of these files give, found by looking at as little of them as is needed."""
        ...

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The rows of a file from `start` on, in chunks of some MiB; columns and types are those of `schema`.

        The same file gives the same chunks every time. The last `next` is the end; from there on nothing comes.
        """
        ...


@runtime_checkable
class LetsGo(Protocol):
    """A reader most of whose work is done by a library that lets other threads of Python go on meanwhile."""

    lets_go: ClassVar[bool]


@runtime_checkable
class Divides(Protocol):
    """A reader that counts by rows, and that may begin in the middle of a file without reading what comes before."""

    def edges(self, place: Place, schema: Schema) -> Sequence[int]:
        """The rows at which reading may begin, from 0 on, and how many rows there are; empty: not to be divided."""
        ...


@runtime_checkable
class OwnPlaces(Protocol):
    """A reader whose rows lie in this process, and that knows where: a chain names no files for it."""

    @property
    def places(self) -> tuple[Place, ...]:
        """What it reads, with a mark of the content; found when it is first needed."""
        ...
