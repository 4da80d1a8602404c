"""What a store's folder holds, as values: `manifest.json`, and one folder per shard with a file for each column.

    manifest.json
    train-000000/x.npy           rows of one shape: an ordinary npy file whose head is 4096 bytes long, so that its
                                 rows can be mapped behind those of other shards
    train-000000/words.0.npy     rows of any length: their offsets (int64, one more than rows)
    train-000000/words.1.npy     and their values

Rows are numbered by their place: set by set, shard by shard, in the order of the manifest. It is written last, so a
folder that has one is whole.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cordee.feed.columns import Kind, Schema

MANIFEST = "manifest.json"
FORM = 1
HEAD = 4096
"""Bytes of a column's file before its rows: a page."""
SETS = ("train", "validation", "test")
"""Names of sets, by the number that rows carry. A chain that is not split has `train` alone."""


class ColumnFile(msgspec.Struct, frozen=True):
    """One file of a shard."""

    name: str
    size: int
    """In bytes, with its head."""
    crc: int
    """CRC-32 of the whole file."""


class Shard(msgspec.Struct, frozen=True):
    """Some rows of one set, in a folder of their own."""

    folder: str
    rows: int
    files: tuple[ColumnFile, ...]


class ColumnKind(msgspec.Struct, frozen=True):
    """A column's `Kind`, as the manifest has it."""

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """All that is known of a store without looking at its rows."""

    form: int
    key: str
    """Of what it was built: equal keys, equal rows."""
    columns: dict[str, ColumnKind]
    sets: dict[str, tuple[Shard, ...]]
    statistics: dict[str, dict[str, Any]]
    """By column, over all sets: count, missing, and for numbers least, most, mean and standard deviation."""
    skipped: int = 0
    """Rows that could not be read and were left out."""
    fitted: tuple[Any, ...] = ()
    """The steps that made the rows, as `steps` writes them: what predicts on new rows applies them again."""
    classes: dict[str, tuple[str, ...]] = {}
    """Of columns of class numbers: what each number stands for."""

    @property
    def schema(self) -> Schema:
        """Its columns."""
        return {name: Kind(one.dtype, tuple(one.shape), one.ragged) for name, one in self.columns.items()}

    def rows(self, name: str) -> int:
        """How many rows a set has; 0 if it is not there."""
        return sum(shard.rows for shard in self.sets.get(name, ()))


def kinds_of(schema: Schema) -> dict[str, ColumnKind]:
    """A schema as a manifest has it."""
    return {name: ColumnKind(kind.dtype, kind.shape, kind.ragged) for name, kind in schema.items()}
