"""Writes shards: one file per column, checksums while they are written, and a name that says that it is whole."""

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
from cordee.feed.store.layout import HEAD, ColumnFile, Shard, file_names
from cordee.feed.threads import in_threads

_PIECE = 1 << 20
"""Bytes that are summed and then written while they are in a core's cache."""
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


def write_shard(out: Path, folder: str, schema: Schema, parts: Sequence[Columns], rows: int) -> Shard:
    """Write the rows of several parts, one after the other, as one shard; it has its name when it is whole."""
    part, needed = out / (folder + _PART), sum(nbytes_of(columns) for columns in parts)
    with storage_errors(out / folder, needed):
        for left in (part, out / folder):  # of a build that was killed
            if left.exists():
                shutil.rmtree(left)
        part.mkdir()

        def written(column: tuple[str, Kind]) -> list[ColumnFile]:
            name, kind = column
            arrays = _arrays([_as_stored(name, one[name], kind) for one in parts], kind)
            return [write_array(part / file, one) for file, one in zip(file_names(name, kind), arrays, strict=True)]

        files = tuple(file for column in in_threads(written, schema.items()) for file in column)
        part.rename(out / folder)
    return Shard(folder, rows, files)


def write_array(path: Path, parts: Sequence[NDArray[Any]]) -> ColumnFile:
    """Write arrays of one type, one after the other, as one npy file."""
    rows = sum(map(len, parts))
    head = npy_head(parts[0].dtype, (rows, *parts[0].shape[1:]))
    with path.open("wb", buffering=0) as file:
        _write(file.fileno(), memoryview(head))
        crc, size = zlib.crc32(head), len(head)
        for array in parts:
            flat = np.ascontiguousarray(array).reshape(-1)
            raw = memoryview(flat.view(np.uint8).data if array.nbytes else b"")
            for at in range(0, len(raw), _PIECE):
                piece = raw[at : at + _PIECE]
                crc = zlib.crc32(piece, crc)
                _write(file.fileno(), piece)
            size += len(raw)
    return ColumnFile(path.name, size, crc)


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


def _arrays(columns: Sequence[Column], kind: Kind) -> list[list[NDArray[Any]]]:
    """For each of a column's files the arrays that it consists of."""
    if not kind.ragged:
        return [[one for one in columns if not isinstance(one, Ragged)]]
    ragged = [one for one in columns if isinstance(one, Ragged)]
    offsets, values, end = [np.zeros(1, np.int64)], [], 0
    for one in ragged:
        first, last = int(one.offsets[0]), int(one.offsets[-1])
        offsets.append(one.offsets[1:] + (end - first))
        values.append(one.values[first:last])
        end += last - first
    return [offsets, values]


def _write(descriptor: int, raw: memoryview) -> None:
    while raw:
        raw = raw[os.write(descriptor, raw) :]
