"""Writes shards while their rows come: a file per column, checksums, and a name that says that it is whole."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError, StorageError
from cordee.feed.columns import TEXT, Column, Columns, Kind, Ragged, Schema
from cordee.feed.store.checksum import joined_crc
from cordee.feed.store.layout import HEAD, ColumnFile, Shard, file_names

_PIECE = 1 << 20
"""Bytes that are summed and then written while they are in a core's cache."""
_ENOUGH = 1 << 16
"""Bytes for each file of a shard that are worth to open all of them."""
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
"""What torch computes with in place of types that it barely knows."""
_PART = ".part"


def stored_kind(name: str, kind: Kind) -> Kind:
    """As which kind a column is stored, so that torch can compute with it; `DataError` if there is none."""
    if kind.dtype == TEXT:
        return Kind(TEXT, ragged=True)
    try:
        dtype = np.dtype(_WIDER.get(kind.dtype, kind.dtype))
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind in "mM":
        raise DataError(
            f"the column {name} holds dates or times ({kind.dtype}), which are no numbers: leave it out, or make "
            "numbers of it in a step, for instance days since a date"
        )
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise DataError(f"the column {name} holds {kind}, which no tensor can hold: make numbers or text of it")
    return Kind(dtype.name, tuple(kind.shape), kind.ragged)


class ShardWriter:
    """A shard whose rows come in parts: they are written while they are in a core's cache, and before memory fills."""

    def __init__(self, out: Path, folder: str, schema: Schema) -> None:
        """Begin; what a build that was killed has left under this name goes."""
        self.rows = 0
        self._out, self._folder, self._schema = out, folder, schema
        self._part = out / (folder + _PART)
        self._waiting: list[Columns] = []
        self._nbytes = 0
        with storage_errors(out / folder, 0):
            for left in (self._part, out / folder):
                if left.exists():
                    shutil.rmtree(left)
            self._part.mkdir()
        self._files = {
            name: [_ArrayFile(self._part / file) for file in file_names(name, kind)] for name, kind in schema.items()
        }

    def add(self, columns: Columns, rows: int) -> None:
        """These rows come next. They are written at once, unless that would be a few bytes for each of many files."""
        self.rows += rows
        self._waiting.append(columns)
        self._nbytes += nbytes_of(columns)
        if self._nbytes >= _ENOUGH * sum(map(len, self._files.values())):
            self._write(last=False)

    def finish(self) -> Shard:
        """No more rows come; it has its name when this returns."""
        self._write(last=True)
        with storage_errors(self._out / self._folder, 0):
            self._part.rename(self._out / self._folder)
        files = tuple(one.whole() for files in self._files.values() for one in files)
        return Shard(self._folder, self.rows, files)

    def _write(self, *, last: bool) -> None:
        with storage_errors(self._out / self._folder, self._nbytes):
            for name, kind in self._schema.items():
                files = self._files[name]
                columns = [_as_stored(name, one[name], kind) for one in self._waiting]
                arrays = _arrays(columns, kind, [one.rows for one in files])
                for file, parts in zip(files, arrays, strict=True):
                    file.append(parts, last=last)
        self._waiting, self._nbytes = [], 0


class _ArrayFile:
    """An npy file whose numbers come in parts. Its head says how many there are, so it is written last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = self.nbytes = self.crc = 0
        """Of what stands behind the head."""
        self.dtype, self.shape = np.dtype(np.uint8), (0,)
        self.head = b""

    def append(self, parts: Sequence[NDArray[Any]], *, last: bool) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            for array in parts:
                self.rows, self.dtype, self.shape = self.rows + len(array), array.dtype, array.shape
                raw = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.nbytes else b"")
                for at in range(0, len(raw), _PIECE):
                    piece = raw[at : at + _PIECE]
                    self.crc = zlib.crc32(piece, self.crc)
                    _write_at(descriptor, piece, HEAD + self.nbytes)
                    self.nbytes += len(piece)
            if last:
                self.head = npy_head(self.dtype, (self.rows, *self.shape[1:]))
                _write_at(descriptor, memoryview(self.head), 0)
        finally:
            os.close(descriptor)

    def whole(self) -> ColumnFile:
        crc = joined_crc(zlib.crc32(self.head), self.crc, self.nbytes)
        return ColumnFile(self.path.name, HEAD + self.nbytes, crc)


def npy_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What stands before the numbers of an npy file, as long as a page."""
    words = f"{{'descr': {np.lib.format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    magic = b"\x93NUMPY\x01\x00" + (HEAD - 10).to_bytes(2, "little")
    return magic + words.encode().ljust(HEAD - 11) + b"\n"


def nbytes_of(columns: Columns) -> int:
    """Bytes that the rows take in memory, and on disk."""
    return sum(
        one.values.nbytes + one.offsets.nbytes if isinstance(one, Ragged) else one.nbytes for one in columns.values()
    )


@contextlib.contextmanager
def storage_errors(path: Path, needed: int) -> Iterator[None]:
    """Turn what the system says about a failed write of about `needed` bytes into a `StorageError`."""
    try:
        yield
    except OSError as problem:
        near = next(one for one in (path, *path.absolute().parents) if one.is_dir())
        said = os.strerror(problem.errno) if problem.errno else str(problem)
        advice = "free some space, or build on another disk; the same build then goes on where it stopped"
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            advice = "check that this user may write there, or choose another folder"
        free = shutil.disk_usage(near).free
        raise StorageError(
            f"cannot write {path.absolute()}: {said} ({needed:,} bytes needed for it, {free:,} free)", next_step=advice
        ) from problem


def _as_stored(name: str, column: Column, kind: Kind) -> Column:
    """The column in the type that it is stored in; itself if it has that type already."""
    values = column.values if isinstance(column, Ragged) else column
    dtype = np.dtype(np.uint8 if kind.dtype == TEXT else kind.dtype)
    if values.dtype == dtype:
        return column
    if values.dtype.kind == "u" and values.dtype.itemsize == 8 and values.size and int(values.max()) >= 2**63:
        raise DataError(
            f"the column {name} holds {int(values.max())}, and tensors hold whole numbers below 2**63: make text or "
            "float64 of it"
        )
    wider = values.astype(dtype)
    return Ragged(column.offsets, wider, text=column.text) if isinstance(column, Ragged) else wider


def _arrays(columns: Sequence[Column], kind: Kind, rows: Sequence[int]) -> list[list[NDArray[Any]]]:
    """For each of a column's files the arrays that come next in it, behind so many rows."""
    if not kind.ragged:
        return [[one for one in columns if not isinstance(one, Ragged)]]
    ragged = [one for one in columns if isinstance(one, Ragged)]
    offsets, values, end = [np.zeros(0 if rows[0] else 1, np.int64)], [], rows[1]
    for one in ragged:
        first, last = int(one.offsets[0]), int(one.offsets[-1])
        offsets.append(one.offsets[1:] + (end - first))
        values.append(one.values[first:last])
        end += last - first
    return [offsets, values]


def _write_at(descriptor: int, raw: memoryview, at: int) -> None:
    while raw:
        count = os.pwrite(descriptor, raw, at)
        raw, at = raw[count:], at + count
