"""Arrays in files: numpy's npz and npy, and the IDX form of MNIST. Nothing in them is ever unpickled."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""By the third byte of an IDX file."""


def read_npz(path: str | Path) -> dict[str, NDArray[Any]]:
    """All arrays of an npz file by key."""
    place = _checked(path, "npz")
    found: dict[str, NDArray[Any]] = {}
    with _naming(place), np.load(place, allow_pickle=False) as archive:
        for key in archive.files:
            with _naming(place, key):
                found[key] = archive[key]
    return found


def read_npy(path: str | Path) -> NDArray[Any]:
    """The array of an npy file, mapped: pages are read when used, and shared by the processes of a host."""
    place = _checked(path, "npy")
    with _naming(place):
        array: NDArray[Any] = np.load(place, mmap_mode="r", allow_pickle=False)
    return array


def read_idx(path: str | Path) -> NDArray[Any]:
    """The array of an IDX file, plain or compressed (.gz)."""
    place = existing(path, "an IDX file")
    with _naming(place):
        raw = gzip.decompress(place.read_bytes()) if place.suffix == ".gz" else place.read_bytes()
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES:
        raise DataError(f"{place} does not begin like an IDX file (it begins with {raw[:4].hex()}); fetch it again")
    dtype, dimensions = np.dtype(IDX_TYPES[raw[2]]), raw[3]
    start = 4 + 4 * dimensions
    shape = tuple(int(length) for length in np.frombuffer(raw[4:start], dtype=">u4"))
    expected = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if len(shape) != dimensions or len(raw) != expected:
        raise DataError(
            f"{place} has {len(raw)} bytes where its head promises {expected}: it is damaged; fetch it again"
        )
    return np.frombuffer(raw, dtype=dtype, offset=start).reshape(shape)


def existing(path: str | Path, expected: str) -> Path:
    """The absolute path of a file that must be there."""
    place = Path(path).expanduser().absolute()
    if not place.is_file():
        raise DataError(f"{place} is not there: {expected} was expected; check the path (it is read on every host)")
    return place


def _checked(path: str | Path, form: str) -> Path:
    """Look before numpy does: it takes any unknown file for a pickle, and advises to trust it."""
    place = existing(path, f"an {form} file")
    with place.open("rb") as file:
        beginning = file.read(6)
    found = {b"PK\3\4": "npz", b"PK\5\6": "npz", b"\x93NUM": "npy"}.get(beginning[:4])
    if found is None:
        made = {"npz": "savez", "npy": "save"}[form]
        raise DataError(f"{place} is not an {form} file (it begins with {beginning!r}); write it with numpy.{made}")
    if found != form:
        raise DataError(f"{place} is an {found} file: read it with cordee.data.{found}")
    return place


@contextmanager
def _naming(place: Path, key: str = "") -> Iterator[None]:
    """Name the file that cannot be read in here, or the array in it that would have to be unpickled."""
    try:
        yield
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if "object" not in str(error).lower():
            raise DataError(f"{place} is damaged ({error}); write or fetch it again") from error
        raise DataError(
            f"the array {repr(key) + ' ' if key else ''}in {place} is of object type, which would need unpickling, and "
            "that runs code from the file; write it again as an array of numbers, for instance array.astype('float32')"
        ) from error
