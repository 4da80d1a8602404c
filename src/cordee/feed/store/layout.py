"""What a store's folder holds, as values: `manifest.json`, and one folder per shard with a file for each column.

    manifest.json
    .lock                            held by a build, and shared by processes that have the store open
    train-000000-000/x.npy           rows of one shape: an ordinary npy file whose head is 4096 bytes long, so that its
                                     rows can be mapped behind those of other shards
    train-000000-000/words.0.npy     rows of any length: their offsets (int64, one more than rows)
    train-000000-000/words.1.npy     and their values
    building/                        how far a build has come; gone when it is done

Rows are numbered by their place: set by set, shard by shard, in the order of the manifest. It is written last, so a
folder that has one is whole. A shard is named after the part of the files that it was made of, and counted within that.
"""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote

import msgspec

from cordee.feed.columns import Kind, Schema

MANIFEST = "manifest.json"
LOCK = ".lock"
BUILDING = "building"
FORM = 1
HEAD = 4096
"""Bytes of a column's file before its rows: a page."""
MOST_FAULTS, MOST_FILES = 5, 100
"""So many rows that could not be read are named, and so many files that had some; all are counted."""
_LONGEST = 120
"""Letters of a file's name: file systems allow 255 bytes."""
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


class Features(msgspec.Struct, frozen=True):
    """How raw rows became a batch, without the rows: what a model needs to predict on new ones."""

    form: int
    columns: dict[str, ColumnKind]
    """Of raw rows."""
    labels: tuple[str, ...]
    """What the label was called behind the last step of the user's."""
    steps: tuple[Any, ...]
    """Fitted, as JSON; the user's functions by their names."""
    transforms: tuple[str, ...] = ()
    """Names of the functions that change batches late, in evaluation too."""
    classes: dict[str, tuple[Any, ...]] = {}
    """Of fields that hold class numbers: what each number stands for."""
    reader: dict[str, Any] = {}
    """What read the files, if it is one of Cordée's, and its settings."""
    lacking: tuple[str, ...] = ()
    """Late functions of the chain that a store was built from, such as `transform(scaled)`: a store keeps no code."""


class Skipped(msgspec.Struct, frozen=True):
    """Rows that could not be read and were left out, as the user has asked for (`on_error="skip"`)."""

    rows: int = 0
    files: dict[str, int] = {}
    """How many of each file, of the first so many files."""
    faults: tuple[str, ...] = ()
    """The first few of them: file, row, reason."""

    def plus(self, other: Skipped) -> Skipped:
        """These and others."""
        files = dict(self.files)
        for name, rows in other.files.items():
            if name in files or len(files) < MOST_FILES:
                files[name] = files.get(name, 0) + rows
        return Skipped(self.rows + other.rows, files, (*self.faults, *other.faults)[:MOST_FAULTS])


NO_ROWS = Skipped()


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
    faults: tuple[str, ...] = ()
    """The first few of them: file, row, reason."""
    skipped_in: dict[str, int] = {}
    """How many of each file."""
    features: Features | None = None
    """Of a store that a user has built of a chain, for training: in a run's folder they are saved with the model."""

    @property
    def schema(self) -> Schema:
        """Its columns."""
        return {name: Kind(one.dtype, tuple(one.shape), one.ragged) for name, one in self.columns.items()}

    @property
    def left_out(self) -> Skipped:
        """What could not be read."""
        return Skipped(self.skipped, self.skipped_in, self.faults)

    @property
    def fingerprint(self) -> str:
        """Of the bytes of all rows: equal on every host that made the same rows of copies of the same files."""
        whole = hashlib.sha256(msgspec.json.encode([sorted(self.columns.items()), self.sets], order="deterministic"))
        return whole.hexdigest()[:16]

    def rows(self, name: str) -> int:
        """How many rows a set has; 0 if it is not there."""
        return sum(shard.rows for shard in self.sets.get(name, ()))


def kinds_of(schema: Schema) -> dict[str, ColumnKind]:
    """A schema as a manifest has it."""
    return {name: ColumnKind(kind.dtype, kind.shape, kind.ragged) for name, kind in schema.items()}


def file_names(name: str, kind: Kind) -> tuple[str, ...]:
    """The files of a column in each shard, whatever it is called: one, or offsets and values."""
    plain = quote(name, safe="", errors="surrogatepass").replace(".", "%2E") or "%"
    if len(plain) > _LONGEST:
        plain = f"{plain[:_LONGEST]}~{hashlib.sha256(plain.encode()).hexdigest()[:16]}"
    return (f"{plain}.0.npy", f"{plain}.1.npy") if kind.ragged else (f"{plain}.npy",)
