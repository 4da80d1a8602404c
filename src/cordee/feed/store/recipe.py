"""What a store is made of, as a value: files, how they are read, the steps that their rows take, and their sets."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import CordeeError, DataError
from cordee.feed.columns import Columns, Schema, kind_of_column, rows_of
from cordee.feed.permute import SPREAD, mix, random_bits
from cordee.feed.places import Place
from cordee.feed.sources.seam import END, Chunk, Divides, Reader
from cordee.feed.steps.seam import TRAIN, Rows, Step
from cordee.feed.store.cutting import Span, spans_of
from cordee.feed.store.layout import FORM, NO_ROWS, Features, Skipped
from cordee.feed.store.statistics import WIDE
from cordee.feed.store.write import stored_kind

SHARD_BYTES = 64 * 2**20
_ONE = np.uint64(1)


class Splitting(Protocol):
    """Which set each row belongs to."""

    @property
    def key(self) -> str:
        """A text that differs between two that would deal otherwise."""
        ...

    def check(self, schema: Schema) -> None:
        """Refuse files that do not have what it goes by."""
        ...

    def sets(self, place: Place, columns: Columns, origins: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """The set of each of these rows of a file, as they are in the file."""
        ...


class Taken(NamedTuple):
    """The rows that became of a chunk, and the chunk."""

    rows: Rows
    chunk: Chunk


@dataclass(frozen=True)
class RowMaker:
    """From the bytes of a file to rows: the part of a recipe that every process of a build is sent."""

    reader: Reader
    raw: Schema
    """The columns of the files."""
    steps: tuple[Step, ...]
    schemas: tuple[Schema, ...]
    """The columns after each of the steps."""
    split: Splitting | None = None

    def rows(self, place: Place, start: int = 0, number: int = 0, stop: int = END) -> Iterator[Taken]:
        """The rows of a file from `start` on, the first of which is its row `number`, up to `stop`."""
        if start >= stop:
            return
        for chunk in self.reader.chunks(place, self.raw, start):
            if chunk.rows:
                origins = origins_of(place, number, chunk.rows) if self._drawn else _same(chunk.rows)
                sets = np.full(chunk.rows, TRAIN, np.uint8)
                if self.split is not None:
                    sets = self.split.sets(place, chunk.columns, origins)
                yield Taken(self._stepped(Rows(chunk.columns, origins, sets), place), chunk)
            else:
                yield Taken(Rows(chunk.columns, np.zeros(0, np.uint64), np.zeros(0, np.uint8)), chunk)
            number += chunk.rows
            if chunk.next >= stop:
                return

    @cached_property
    def _drawn(self) -> bool:
        """Whether anything is a function of a row's origin."""
        wide = any(math.prod(one.shape) > WIDE for one in self.raw.values())
        return wide or self.split is not None or bool(self.steps)

    def _stepped(self, rows: Rows, place: Place) -> Rows:
        for step, schema in zip(self.steps, self.schemas, strict=True):
            with named_step(step, f" in {place.key}"):
                rows = step.apply(rows)
                _check(rows, schema)
            if not len(rows):
                break
        return rows


@dataclass(frozen=True)
class Recipe:
    """All that decides which rows a store has, and in which order. A frozen value."""

    reader: Reader
    places: tuple[Place, ...]
    steps: tuple[Step, ...] = ()
    split: Splitting | None = None
    features: Features | None = None
    """What the manifest keeps of the steps, for those who apply them to new rows."""
    earlier: Skipped = NO_ROWS
    """What could not be read when the stores were built that these rows are read from."""
    shard_bytes: int = SHARD_BYTES
    """A shard ends when so many bytes of rows have come together, of all sets: what a process holds in memory."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if not self.places:
            raise DataError("there are no files to read: check the path, and what the names of the files end with")
        if self.shard_bytes < 1:
            raise DataError(f"shard_bytes={self.shard_bytes}: at least 1 is needed")
        for step in self.steps:
            if not callable(getattr(step, "apply", None)):
                raise DataError(
                    f"the step {called(step)} was not fitted yet: that is to be done before a store is built"
                )

    @cached_property
    def maker(self) -> RowMaker:
        """What makes rows of files; the columns are found by looking into them."""
        raw, schemas = self.reader.schema(self.places), []
        if self.split is not None:
            self.split.check(raw)
        schema = raw
        for step in self.steps:
            with named_step(step):
                schema = step.schema(schema)
            schemas.append(schema)
        return RowMaker(self.reader, raw, self.steps, tuple(schemas), self.split)

    @cached_property
    def schema(self) -> Schema:
        """The columns of the store."""
        last = self.maker.schemas[-1] if self.steps else self.maker.raw
        if not last:
            raise DataError("no column is left: there would be nothing in the store")
        return {name: stored_kind(name, kind) for name, kind in last.items()}

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The parts that it is built in."""
        reader = self.reader
        if not isinstance(reader, Divides):
            return tuple(spans_of(self.places))
        return tuple(spans_of(self.places, lambda place: reader.edges(place, self.maker.raw)))

    @cached_property
    def key(self) -> str:
        """Equal keys, equal rows: made of the reader, the files as they are now, and the steps."""
        whole = hashlib.sha256()
        parts = [str(FORM), str(self.shard_bytes), self.reader.key, self.split.key if self.split else ""]
        parts += [f"{called(step)} {step.key}" for step in self.steps]
        for part in parts:
            whole.update(f"{len(part)} {part}".encode("utf-8", "surrogatepass"))
        for place in self.places:
            whole.update(place.stamp.encode("utf-8", "surrogatepass"))
        return whole.hexdigest()[:32]

    @cached_property
    def nbytes(self) -> int:
        """Of all files together."""
        return sum(place.size for place in self.places)


def origins_of(place: Place, start: int, count: int) -> NDArray[np.uint64]:
    """Of `count` rows of a file from row `start` on: 64 bits each, of the file's identity and the row's number."""
    key = np.uint64(random_bits(1, f"origin {place.identity}")[0])
    return mix((np.arange(start, start + count, dtype=np.uint64) + _ONE) * SPREAD + key)


def _same(count: int) -> NDArray[np.uint64]:
    return np.broadcast_to(np.uint64(0), count)


def called(step: Any) -> str:
    """What a step is called in messages."""
    return str(getattr(step, "called", "") or type(step).__name__)


@contextlib.contextmanager
def named_step(step: Any, where: str = "") -> Iterator[None]:
    """Errors in here name the step; what the user's own code raised is their cause."""
    try:
        yield
    except _Unfit as error:
        raise DataError(f"the step {called(step)}{where} {error}") from None
    except CordeeError:
        raise
    except Exception as error:
        told = " ".join(str(error).split())[:300]
        raise DataError(
            f"the step {called(step)}{where} raised {type(error).__name__}: {told}. Fix the function, or try it on a "
            "few rows first"
        ) from error


class _Unfit(DataError):
    """What a step gave is not what it said before."""


def _check(rows: Rows, schema: Schema) -> None:
    """Columns of one length each, as the step's schema has them, and as many origins and sets."""
    try:
        count = rows_of(rows.columns)
    except DataError as error:
        raise _Unfit(f"gave columns of different lengths: {error}") from None
    for what, given in (("origins", rows.origins), ("sets", rows.sets)):
        if len(given) != count:
            raise _Unfit(f"gave {count} rows with {len(given)} {what}: each row needs one")
    if rows.columns.keys() != schema.keys():
        raise _Unfit(
            f"gave the columns {_shown(rows.columns)}, where {_shown(schema)} were expected: the same ones for all rows"
        )
    for name, column in rows.columns.items():
        if not count:
            continue
        kind, expected = kind_of_column(column), schema[name]
        if (kind.dtype, kind.shape, kind.ragged) != (expected.dtype, tuple(expected.shape), expected.ragged):
            raise _Unfit(
                f"gave {kind} for the column {name}, and {expected} for earlier rows: all need one type and shape"
            )


def _shown(names: Sequence[str] | Mapping[str, Any]) -> str:
    some = list(names)[:12]
    return ", ".join([*some, *(["..."] if len(names) > len(some) else [])]) or "none"
