"""What files of arrays say of themselves at their beginning: numpy's npy, and IDX."""

from __future__ import annotations

from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import Kind
from cordee.feed.files import IDX_TYPES
from cordee.feed.sources.kinds import TEXTS

NPY, ZIP = b"\x93NUM", b"PK\3\4"
"""First bytes of an npy file, and of an npz file, which is a ZIP archive."""


class Head(NamedTuple):
    """One array in a file."""

    rows: int
    shape: tuple[int, ...]
    """Of a row."""
    dtype: np.dtype[Any]
    fortran: bool = False
    """Whether its first dimension varies fastest, so that its rows do not lie one after the other."""

    @property
    def row_bytes(self) -> int:
        """What one row takes."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> Kind:
        """What its rows are as a column."""
        return TEXTS if self.dtype.kind in "SU" else Kind(self.dtype.name, self.shape)


def npy_head(file: BinaryIO, where: str) -> Head:
    """The head of an npy file, behind which the file then stands."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"its version {version} is not known")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError, UnicodeError) as error:
        raise DataError(f"{where} is damaged ({error}); write or fetch it again") from error
    if dtype.hasobject:
        raise DataError(
            f"{where} is of object type, which would need unpickling, and that runs code from the file; write it again "
            "as an array of numbers, for instance array.astype('float32')"
        )
    return _checked(Head(shape[0] if shape else 0, shape[1:], dtype, fortran and len(shape) > 1), bool(shape), where)


def idx_head(file: BinaryIO, where: str) -> Head:
    """The head of an IDX file, behind which the file then stands."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES:
        raise DataError(f"{where} does not begin like an IDX file (it begins with {magic.hex()}); fetch it again")
    raw = file.read(4 * magic[3])
    if len(raw) < 4 * magic[3]:
        raise DataError(f"{where} is cut off within its head; fetch it again")
    shape = tuple(int(length) for length in np.frombuffer(raw, ">u4"))
    return _checked(Head(shape[0] if shape else 0, shape[1:], np.dtype(IDX_TYPES[magic[2]])), bool(shape), where)


def _checked(head: Head, has_rows: bool, where: str) -> Head:
    if not has_rows:
        raise DataError(f"{where} is a single value: an array whose first dimension counts rows was expected")
    if head.dtype.kind not in "biufSU" or (head.dtype.kind in "SU" and head.shape):
        raise DataError(
            f"{where} holds values of type {head.dtype}{' in rows' if head.shape else ''}; numbers were expected, or "
            "one text per row. Write it again, for instance times as array.astype('int64')"
        )
    return head
