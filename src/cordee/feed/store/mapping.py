"""Rows of many files in one range of addresses, so that one gather reads them all.

The range is reserved once. Each file's rows are mapped at their place in it, which has to begin with a page: where
those of a file do not fill their last page, rows that do not exist follow, and read as zeros. Where there are no such
holes, the *place* of a row is its number. Linux only.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import StorageError
from cordee.feed.columns import Kind
from cordee.feed.permute import Ids
from cordee.feed.store.layout import HEAD

_FIXED, _NO_RESERVE = 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value
_MANY_MAPS = 65_530


class Places:
    """Where the rows of shards lie in the range: alike for all columns of fixed shape."""

    def __init__(self, rows: Sequence[int], widths: Sequence[int]) -> None:
        """`rows` of each shard, and bytes that a row has in each column."""
        step = max((HEAD // math.gcd(HEAD, width) for width in widths if width), default=1)
        ends = np.cumsum(np.asarray(rows, dtype=np.int64))
        self.starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        """The first row of each shard."""
        room = -(-np.asarray(rows, dtype=np.int64) // step) * step
        at = np.concatenate([np.zeros(1, np.int64), np.cumsum(room)[:-1]])
        self.at = at
        """And its place."""
        self.length = int(at[-1]) + rows[-1]
        """Of the range, in rows."""
        self._shifts = at - self.starts
        self.holes = bool(self._shifts.any())

    def of(self, ids: Ids) -> Ids:
        """The places of rows."""
        if not self.holes:
            return ids
        places: Ids = ids + self._shifts[self.shards(ids)]
        return places

    def shards(self, ids: Ids) -> Ids:
        """Which shard each row is in."""
        found: Ids = np.searchsorted(self.starts, ids, side="right") - 1
        return found


def mapped(kind: Kind, files: Sequence[Path], rows: Sequence[int], places: Places) -> NDArray[Any]:
    """The rows of all files, read only; the range is given back when nothing refers to the array any more."""
    dtype = np.dtype(kind.dtype)
    width = dtype.itemsize * math.prod(kind.shape)
    shape = (places.length, *kind.shape)
    if not width:
        return np.zeros(shape, dtype)
    if mmap.PAGESIZE > HEAD:  # some ARM systems have pages of 64 KiB, where files cannot be mapped behind their heads
        return _read(dtype, shape, files, rows, places)
    size = -(-places.length * width // mmap.PAGESIZE) * mmap.PAGESIZE
    holder = _Range(_map(0, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1, 0), size, shape, dtype)
    for path, count, at in zip(files, rows, places.at.tolist(), strict=True):
        handle = os.open(path, os.O_RDONLY)
        try:
            _map(holder.address + at * width, count * width, mmap.MAP_SHARED | _FIXED, handle, HEAD)
        finally:
            os.close(handle)
    return np.asarray(holder)


def _read(
    dtype: np.dtype[Any], shape: tuple[int, ...], files: Sequence[Path], rows: Sequence[int], places: Places
) -> NDArray[Any]:
    """The rows of all files, in memory of this process."""
    whole = np.zeros(shape, dtype)
    for path, count, at in zip(files, rows, places.at.tolist(), strict=True):
        whole[at : at + count] = np.load(path, allow_pickle=False)
    return whole


class _Range:
    """Addresses that numpy sees as an array, as long as one refers to them."""

    def __init__(self, address: int, size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.address = address
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, True)}
        weakref.finalize(self, _libc().munmap, ctypes.c_void_p(address), ctypes.c_size_t(size))


def _map(address: int, size: int, flags: int, handle: int, offset: int) -> int:
    found: int | None = _libc().mmap(address or None, size, mmap.PROT_READ, flags, handle, offset)
    if found == _FAILED or found is None:
        code = ctypes.get_errno()
        raise StorageError(
            f"the rows of a store cannot be mapped into memory: {os.strerror(code)} ({size:,} bytes). A process "
            f"may have {_most_maps():,} maps (sysctl vm.max_map_count) and as much address space as `ulimit -v` says: "
            "build the store with larger shards, or raise these limits"
        )
    return found


@lru_cache(maxsize=1)
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    numbers = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *numbers]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _most_maps() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _MANY_MAPS
