"""Whether a store is what its manifest says. Both may come from elsewhere: nothing in them is taken on trust."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import TEXT, Kind
from cordee.feed.store.layout import HEAD, SETS, Manifest, Shard, file_names
from cordee.feed.store.write import npy_head

_DIMS, _MOST = 30, 2**60
"""Of an array, and bytes of a column: what NumPy can count."""
_AGAIN = "copy or build the store again"


def dtype_of(name: str, kind: Kind) -> np.dtype[Any]:
    """The type of a column's numbers. `DataError` for any other one: of objects, a file would hold addresses."""
    try:
        dtype = np.dtype(np.uint8 if kind.dtype == TEXT and kind.ragged else kind.dtype)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.kind not in "biufc" or (kind.dtype != TEXT and dtype.name != kind.dtype):
        raise DataError(f"column {name[:100]!r} holds {str(kind)[:100]}, which is no type of numbers that a store has")
    return dtype


def row_bytes(kind: Kind) -> int:
    """Bytes of an entry of fixed shape."""
    return np.dtype(kind.dtype).itemsize * math.prod(kind.shape)


def check_manifest(manifest: Manifest) -> None:
    """`DataError` says what no store has: other types, other sets, files outside of its folder, too many rows."""
    if not manifest.columns or not manifest.sets or not set(manifest.sets) <= {*SETS}:
        raise DataError(f"it has {len(manifest.columns)} columns, and sets that are not {', '.join(SETS)}, or none")
    shards = [shard for one in manifest.sets.values() for shard in one]
    if not all(manifest.sets.values()) or not all(0 < shard.rows < _MOST for shard in shards):
        raise DataError("it has a set or a shard without rows")
    for name, kind in manifest.schema.items():
        dtype = dtype_of(name, kind)
        fits = len(kind.shape) <= _DIMS and all(0 <= size < _MOST for size in kind.shape)
        wide = sum(shard.rows for shard in shards) * dtype.itemsize * math.prod(size or 1 for size in kind.shape)
        if not fits or wide > _MOST or (kind.ragged and kind.shape):
            raise DataError(f"column {name[:100]!r} has entries of an impossible shape")
    for shard in shards:
        for part in (shard.folder, *(file.name for file in shard.files)):
            if part in ("", ".", "..") or len(part) > 255 or any(one in part for one in "/\\\0"):
                raise DataError(f"it names {part[:100]!r}, which is no file or folder in it")


def check_files(folder: Path, manifest: Manifest) -> None:
    """Every file is there, is as long as it was, and begins as it must: a missing page would kill who touches it."""
    for shards in manifest.sets.values():
        for shard in shards:
            _check_sizes(folder / shard.folder, shard, manifest)
        _check_heads(folder / shards[-1].folder, shards[-1], manifest)


def _check_sizes(folder: Path, shard: Shard, manifest: Manifest) -> None:
    for file in shard.files:
        path = folder / file.name
        try:
            size = path.stat().st_size
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise DataError(f"{path} cannot be read ({why}): {_AGAIN}") from error
        if size != file.size:
            raise DataError(f"{path} has {size:,} bytes where {file.size:,} were written: it was cut short; {_AGAIN}")
    sizes = {file.name: file.size for file in shard.files}
    for name, kind in manifest.schema.items():
        files = file_names(name, kind)
        if missing := [file for file in files if file not in sizes]:
            raise DataError(f"{folder} has no {missing[0]}: {_AGAIN}")
        rows = sizes[files[0]] - HEAD
        if rows != (8 * (shard.rows + 1) if kind.ragged else shard.rows * row_bytes(kind)):
            raise DataError(f"{folder / files[0]} does not hold {shard.rows:,} rows of {kind}: {_AGAIN}")
        if kind.ragged and (sizes[files[1]] < HEAD or (sizes[files[1]] - HEAD) % dtype_of(name, kind).itemsize):
            raise DataError(f"{folder / files[1]} holds no whole number of values of {kind}: {_AGAIN}")


def _check_heads(folder: Path, shard: Shard, manifest: Manifest) -> None:
    """The columns of a shard are what the manifest says."""
    for name, kind in manifest.schema.items():
        if kind.ragged:
            continue
        path = folder / file_names(name, kind)[0]
        with path.open("rb") as file:
            if file.read(HEAD) != npy_head(np.dtype(kind.dtype), (shard.rows, *kind.shape)):
                raise DataError(f"{path} does not hold {shard.rows:,} rows of {kind}: {_AGAIN}")
