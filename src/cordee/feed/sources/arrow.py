"""Arrow's columns as ours: which numbers stand for its types, and which rows have no such number.

| Arrow | here |
|---|---|
| whole numbers, floats | the same type; whole numbers of which some are missing: float32 up to 16 bits, float64 above |
| bool | bool; float32 (0, 1, NaN) where some are missing |
| decimal | float64 |
| date, timestamp | float64: seconds since 1970-01-01 UTC |
| time of day, duration | float64: seconds |
| text, binary | entries of any length; a missing one is empty |
| dictionary | what its values are |
| list of fixed size | entries of this shape |
| list | entries of any length; a missing one is empty |
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.columns import TEXT, Column, Columns, Kind, Ragged, Schema
from cordee.feed.permute import Ids

_SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400


class Misfit(NamedTuple):
    """Rows of a column that cannot be what the column is."""

    rows: Ids
    reason: str


def pyarrow() -> Any:
    """The library, or the line that installs it."""
    try:
        import pyarrow as pa
    except ImportError:
        raise DataError("reading tables needs pyarrow, which is not installed: pip install 'cordee[data]'") from None
    return pa


def kind_of(name: str, kind: Any, *, missing: bool) -> Kind:
    """What a column of an Arrow type becomes; `missing`: some of its entries are, or may be."""
    types, raw = pyarrow().types, str(kind)
    if isinstance(kind, pyarrow().BaseExtensionType):
        return kind_of(name, kind.storage_type, missing=missing)
    if types.is_dictionary(kind):
        return kind_of(name, kind.value_type, missing=missing)
    if types.is_boolean(kind):
        return Kind("float32", raw=raw) if missing else Kind("bool", raw=raw)
    if types.is_integer(kind) and missing:
        return Kind("float32" if kind.bit_width <= 16 else "float64", raw=raw)
    if types.is_integer(kind) or types.is_floating(kind):
        return Kind(np.dtype(kind.to_pandas_dtype()).name, raw=raw)
    if types.is_decimal(kind) or types.is_temporal(kind):
        return Kind("float64", raw=raw)
    if types.is_null(kind):
        return Kind("float32", raw=raw)
    if _is_text(kind):
        return Kind(TEXT, ragged=True, raw=raw)
    if types.is_fixed_size_binary(kind):
        return Kind("uint8", (kind.byte_width,), raw=raw)
    if _is_binary(kind):
        return Kind("uint8", ragged=True, raw=raw)
    if types.is_fixed_size_list(kind):
        inner = kind_of(name, kind.value_type, missing=False)
        if not inner.ragged:
            return Kind(inner.dtype, (kind.list_size, *inner.shape), raw=raw)
    if types.is_list(kind) or types.is_large_list(kind):
        inner = kind_of(name, kind.value_type, missing=False)
        if not inner.ragged and not inner.shape:
            return Kind(inner.dtype, ragged=True, raw=raw)
    raise DataError(
        f"column {name} is {raw}, which is no number, text or list of numbers: choose others by columns=[...], "
        "or write its parts as columns of their own first (a table of Arrow's: table.flatten())"
    )


def misfit(array: Any, kind: Kind) -> Misfit | None:
    """Entries of an array that a column of this kind cannot hold; None if it can hold all."""
    if kind.dtype == TEXT:
        return None
    array = plain_array(array)
    if kind.ragged:
        return _holes(array, kind)
    if not kind.shape:
        if array.null_count and np.dtype(kind.dtype).kind != "f":
            return Misfit(_true(array.is_null()), f"is missing, and {kind.dtype} has no missing value")
        return _unlike(array, kind)
    if pyarrow().types.is_fixed_size_list(array.type):
        if not array.null_count or np.dtype(kind.dtype).kind == "f":
            return None
        return Misfit(_true(array.is_null()), f"is missing, and {kind.dtype} has no missing value")
    wanted = math.prod(kind.shape)
    lengths = np.diff(_entries(array, kind)[0])
    wrong = np.flatnonzero(lengths != wanted)
    if len(wrong):
        return Misfit(wrong, f"has {lengths[wrong[0]]} entries, where {kind} needs {wanted}")
    return _holes(array, kind)


def column_of(array: Any, kind: Kind) -> Column:
    """An Arrow array (or several in one column) as a column of this kind; its memory is used where that is possible."""
    different = _different(array) if kind.dtype == TEXT else None
    array = plain_array(array)
    if kind.ragged:
        offsets, values = _entries(array, kind)
        return Ragged(offsets, values, text=kind.dtype == TEXT, different=different)
    if not kind.shape:
        return _numbers(array, kind.dtype)
    if not pyarrow().types.is_fixed_size_list(array.type):
        return _entries(array, kind)[1].reshape(-1, *kind.shape)
    present = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)) if array.null_count else None
    rows = len(array)
    while pyarrow().types.is_fixed_size_list(array.type):
        array = array.flatten()
    values = _numbers(array, kind.dtype)
    if present is None:
        return values.reshape(rows, *kind.shape)
    whole = np.full((rows, *kind.shape), np.nan, kind.dtype)
    whole[present] = values.reshape(-1, *kind.shape)
    return whole


def sorted_out(table: Any, schema: Schema) -> tuple[Columns, int, list[tuple[int, str]]]:
    """A table's columns, how many rows they have, and the rows that are not in them, each with its reason."""
    reasons: dict[int, str] = {}
    for name, kind in schema.items():
        found = misfit(table.column(name), kind)
        for row in () if found is None else found.rows.tolist():
            reasons.setdefault(row, f"column {name} {found.reason}")  # type: ignore[union-attr]
    if reasons:
        table = table.take(np.delete(np.arange(table.num_rows), list(reasons)))
    columns = {name: column_of(table.column(name), kind) for name, kind in schema.items()}
    return columns, table.num_rows, sorted(reasons.items())


def plain_array(array: Any) -> Any:
    """One array, without the wrappings that Arrow may have put around its values."""
    pa = pyarrow()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # what Arrow cannot put together
        array = pa.concat_arrays(array.chunks)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def no_rows(schema: Schema) -> Columns:
    """Its columns, without a row."""
    return {
        name: Ragged(np.zeros(1, np.int64), np.zeros(0, _dtype(kind)), text=kind.dtype == TEXT)
        if kind.ragged
        else np.zeros((0, *kind.shape), kind.dtype)
        for name, kind in schema.items()
    }


def _numbers(array: Any, dtype: str) -> NDArray[Any]:
    """As NumPy's, missing ones NaN."""
    pa = pyarrow()
    kind, types = array.type, pa.types
    if types.is_temporal(kind):
        return _seconds(array).astype(dtype, copy=False)
    if types.is_null(kind):
        return np.full(len(array), np.nan, dtype)
    if types.is_decimal(kind) or _is_text(kind):
        array = array.cast(pa.float64() if types.is_decimal(kind) else pa.from_numpy_dtype(dtype))
    elif types.is_boolean(kind) and (array.null_count or dtype != "bool"):
        array = array.cast(pa.uint8())
    elif np.dtype(dtype).kind in "iu" and dtype != str(kind):
        array = array.cast(pa.from_numpy_dtype(dtype))
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers.astype(dtype, copy=False)


def _seconds(array: Any) -> NDArray[np.float64]:
    pa = pyarrow()
    kind, types = array.type, pa.types
    numbers = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_numpy(zero_copy_only=False)
    seconds: NDArray[np.float64]
    if types.is_date32(kind):
        seconds = np.multiply(numbers, _DAY, dtype=np.float64)
    else:
        seconds = np.divide(numbers, 10**3 if types.is_date64(kind) else _SECONDS[kind.unit], dtype=np.float64)
    return seconds


def _entries(array: Any, kind: Kind) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Where each entry begins among the numbers of all, and these numbers."""
    pa = pyarrow()
    if kind.dtype == TEXT and not _is_text(array.type):
        array = array.cast(pa.string())
    if str(array.type) in ("string_view", "binary_view"):
        array = array.cast(pa.large_string() if _is_text(array.type) else pa.large_binary())
    if not (_is_text(array.type) or _is_binary(array.type)):
        return _of_lists(array, kind)
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    if array.null_count:
        array = array.fill_null(b"" if _is_binary(array.type) else "")
    if not len(array):
        return np.zeros(1, np.int64), np.zeros(0, _dtype(kind))
    _, places, data = array.buffers()
    width = np.int64 if str(array.type).startswith("large") else np.int32
    offsets = np.frombuffer(places, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    values = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    values = values[offsets[0] : offsets[-1]].astype(_dtype(kind), copy=False)
    if offsets[0]:
        offsets -= offsets[0]
    return offsets, values


def _different(array: Any) -> list[bytes] | None:
    """The texts of an array that is stored as a dictionary and numbers into it; None for others."""
    pa = pyarrow()
    if not pa.types.is_dictionary(array.type) or str(array.type.value_type) not in ("string", "large_string"):
        return None
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks != 1:
            return None
        array = array.chunk(0)
    used = np.bincount(array.indices.drop_null().to_numpy(), minlength=len(array.dictionary))
    return [text for text in array.dictionary.cast(pa.large_binary()).take(np.flatnonzero(used)).to_pylist() if text]


def _of_lists(array: Any, kind: Kind) -> tuple[NDArray[np.int64], NDArray[Any]]:
    import pyarrow.compute as pc

    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    values = array.flatten()
    while pyarrow().types.is_nested(values.type):
        lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])[offsets]
        values = values.flatten()
    return offsets, _numbers(values, _dtype(kind).name)


def _unlike(array: Any, kind: Kind) -> Misfit | None:
    """Entries that cannot be turned into such numbers: text that is none, fractions where whole ones are wanted."""
    types = pyarrow().types
    whole = np.dtype(kind.dtype).kind in "biu" and str(array.type) != kind.dtype and not types.is_null(array.type)
    if not (whole or _is_text(array.type)):
        return None

    def bad(start: int, stop: int) -> list[int]:
        try:
            _numbers(array.slice(start, stop - start), kind.dtype)
            return []
        except pyarrow().ArrowInvalid:
            if stop - start == 1:
                return [start]
            half = (start + stop) // 2
            return bad(start, half) + bad(half, stop)

    rows = np.asarray(bad(0, len(array)), np.int64)
    return Misfit(rows, f"is {array[int(rows[0])].as_py()!r}, which is not {kind.dtype}") if len(rows) else None


def _holes(array: Any, kind: Kind) -> Misfit | None:
    """Entries with a missing number in them, where numbers cannot be missing."""
    if np.dtype(_dtype(kind)).kind == "f" or not pyarrow().types.is_nested(array.type):
        return None
    values = array.flatten()
    if not values.null_count:
        return None
    ends = _of_lists(array, Kind("float64", ragged=True))[0]
    rows = np.unique(np.searchsorted(ends, _true(values.is_null()), side="right") - 1)
    return Misfit(rows, f"has a missing number in it, and {kind.dtype} has no missing value")


def _true(mask: Any) -> Ids:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False)).astype(np.int64)


def _dtype(kind: Kind) -> np.dtype[Any]:
    return np.dtype("uint8" if kind.dtype == TEXT else kind.dtype)


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def _is_binary(kind: Any) -> bool:
    return str(kind) in ("binary", "large_binary", "binary_view") or str(kind).startswith("fixed_size_binary")
