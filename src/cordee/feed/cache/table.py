"""How a store is cut into blocks: runs of rows of one shard, numbered over all of its sets. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from cordee.feed.cache.settings import WHOLE
from cordee.feed.columns import TEXT, Kind
from cordee.feed.permute import Ids
from cordee.feed.source import digest_of
from cordee.feed.store.layout import HEAD, ColumnFile, Manifest, Shard

_REMEMBERED = 4096
_ALIGNED = 64
"""Columns begin at multiples of so many bytes in a block."""


class Part(NamedTuple):
    """What a block holds of one file of its shard."""

    file: ColumnFile
    start: int
    """In the file."""
    nbytes: int
    at: int
    """In the block."""


class Run(NamedTuple):
    """The rows of a block."""

    shard: Shard
    start: int
    """In the shard."""
    rows: int


@dataclass(frozen=True)
class Cut:
    """The blocks of one set."""

    first: int
    """The number of its first block."""
    starts: Ids
    """The row of the set with which each block begins."""
    runs: tuple[Run, ...]

    def block_of(self, ids: Ids) -> Ids:
        """The blocks of these rows."""
        found: Ids = np.searchsorted(self.starts, ids, side="right") + (self.first - 1)
        return found


class BlockTable:
    """The blocks of a store."""

    def __init__(self, manifest: Manifest, block: int | str) -> None:
        """Of about `block` bytes each, or of whole shards; also where a column has entries of any length."""
        self.schema = manifest.schema
        self.whole = block == WHOLE or any(kind.ragged for kind in self.schema.values())
        """Whether each block is a shard."""
        self._row_bytes = [_row_bytes(kind) for kind in self.schema.values()]
        self.forms = [(number_type(kind), kind.shape) for kind in self.schema.values()]
        """The type and the shape of an entry of each column."""
        self.parts = lru_cache(maxsize=_REMEMBERED)(self._parts)
        """By the number of a block, what it consists of: the files of its columns, in the order of the schema."""
        row_bytes = sum(self._row_bytes) or 1
        each = 0 if self.whole or isinstance(block, str) else max(1, block // row_bytes)
        self.sets: dict[str, Cut] = {}
        self._runs: list[Run] = []
        for name, shards in manifest.sets.items():
            self.sets[name] = self._cut(shards, each)
        shape = msgspec.json.encode([sorted(manifest.columns.items()), manifest.sets, each], order="deterministic")
        self.key = digest_of([shape])
        """Of all that its blocks hold."""

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._runs)

    def run(self, block: int) -> Run:
        """The rows of a block."""
        return self._runs[block]

    def nbytes(self, block: int) -> int:
        """The size of a block."""
        last = self.parts(block)[-1]
        return last.at + -(-last.nbytes // _ALIGNED) * _ALIGNED

    def _parts(self, block: int) -> list[Part]:
        run, parts, at = self._runs[block], [], 0
        files = iter(run.shard.files)
        for kind, width in zip(self.schema.values(), self._row_bytes, strict=True):
            for file in [next(files) for _ in range(1 + kind.ragged)]:
                if self.whole:
                    start, nbytes = HEAD, file.size - HEAD
                else:
                    start, nbytes = HEAD + run.start * width, run.rows * width
                parts.append(Part(file, start, nbytes, at))
                at += -(-nbytes // _ALIGNED) * _ALIGNED
        return parts

    def _cut(self, shards: tuple[Shard, ...], each: int) -> Cut:
        first, starts, row = len(self._runs), [], 0
        for shard in shards:
            edges = [*range(0, shard.rows, each or max(1, shard.rows)), shard.rows]
            for start, stop in pairwise(edges):
                self._runs.append(Run(shard, start, stop - start))
                starts.append(row + start)
            row += shard.rows
        return Cut(first, np.asarray(starts, np.int64), tuple(self._runs[first:]))


def _row_bytes(kind: Kind) -> int:
    if kind.ragged:
        return 8
    return number_type(kind).itemsize * int(np.prod(kind.shape, dtype=np.int64))


def number_type(kind: Kind) -> np.dtype[np.generic]:
    """The type of a column's numbers; of texts, which are bytes."""
    return np.dtype(np.uint8 if kind.dtype == TEXT else kind.dtype)
