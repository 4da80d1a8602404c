"""Samples of Python's as columns: what a sample's fields are called, which kind each has, and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.columns import TEXT, Column, Kind, Ragged, Schema
from cordee.feed.sources.kinds import TEXTS

_NUMBERS = "biuf"


def fields_of(sample: Any, names: Sequence[str], where: str) -> dict[str, Any]:
    """The fields of a sample by name; a pair is x and y, anything else but a dict or a tuple is x."""
    if isinstance(sample, Mapping):
        return {str(name): value for name, value in sample.items()}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return dict(zip(sample._fields, sample, strict=True))
    if not isinstance(sample, tuple) and not (isinstance(sample, list) and names):
        return {names[0] if names else "x": sample}
    called = tuple(names) or (("x", "y") if len(sample) == 2 else ("x",) if len(sample) == 1 else ())
    if len(called) != len(sample):
        given = f"names={list(names)}" if names else "no names"
        raise DataError(f"{where} is a tuple of {len(sample)}, for which there are {given}: names=['x', 'mask', 'y']")
    return dict(zip(called, sample, strict=True))


def entry_of(value: Any, row: str, name: str) -> Any:
    """A field of a row as a text, None, or an array; Python's numbers are float32 and int64, as in torch."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(bytes(value), np.uint8)
    if isinstance(value, torch.Tensor):
        dense = value.detach().cpu()
        array = (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
    elif isinstance(value, bool | int | float | list | tuple):
        array = _of_python(value, f"{row}: {name}")
    elif hasattr(value, "__array_interface__"):  # an image of Pillow's, for instance
        array = np.asarray(value)
    else:
        raise DataError(
            f"{row}: {name} holds a {type(value).__name__}: numbers, arrays, tensors, images of Pillow's and texts "
            "become columns. Change it before, or leave it out"
        )
    if array.dtype.kind not in _NUMBERS:
        raise DataError(f"{row}: {name} holds values of type {array.dtype}: numbers or texts were expected")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def kinds_of_samples(samples: Sequence[Mapping[str, Any]], what: str) -> Schema:
    """The kinds of columns that hold these entries: arrays where shapes are equal, lists of any length where not."""
    first = samples[0]
    for number, sample in enumerate(samples, start=1):
        if sample.keys() != first.keys():
            raise DataError(
                f"{what}, row {number} has the fields {', '.join(sample) or 'none'}, the first row has "
                f"{', '.join(first) or 'none'}: each row needs the same"
            )
    return {name: _kind_of([sample[name] for sample in samples], name, what) for name in first}


def column_of_entries(entries: Sequence[Any], kind: Kind, name: str, what: str, before: int) -> Column:
    """These entries as a column; the first of them belongs to the row after `before`."""
    if kind.dtype == TEXT:
        for number, one in enumerate(entries, start=before + 1):
            if one is not None and not isinstance(one, str):
                raise DataError(f"{what}, row {number}: {name} holds numbers, a text was expected as in the first rows")
        return Ragged.of([one or "" for one in entries])
    wanted = np.dtype(kind.dtype)
    arrays = [_as(one, wanted, kind, f"{what}, row {n}: {name}") for n, one in enumerate(entries, start=before + 1)]
    if not kind.ragged:
        return np.stack(arrays) if arrays else np.zeros((0, *kind.shape), wanted)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(one) for one in arrays], dtype=np.int64)])
    return Ragged(offsets, np.concatenate(arrays) if arrays else np.zeros(0, wanted))


def _kind_of(entries: Sequence[Any], name: str, what: str) -> Kind:
    there = [one for one in entries if one is not None]
    if not there:
        raise DataError(
            f"{what}: {name} is missing (None) in all of the first {len(entries)} rows, so its kind cannot be known; "
            f"give it: kinds={{{name!r}: 'float32'}}"
        )
    if all(isinstance(one, str) for one in there):
        return TEXTS
    if any(isinstance(one, str) for one in there):
        raise DataError(f"{what}: {name} holds texts in some rows and numbers in others")
    dtype = np.result_type(*({one.dtype for one in there if one.size} or {one.dtype for one in there}))
    shapes = sorted({one.shape for one in there})
    if len(shapes) == 1:
        dtype = np.result_type(dtype, np.float32) if len(there) < len(entries) and not shapes[0] else dtype
        return Kind(dtype.name, tuple(shapes[0]))
    if any(len(shape) != 1 for shape in shapes):
        raise DataError(
            f"{what}: {name} has the shape {shapes[0]} in one row and {shapes[1]} in another: make them equal (resize, "
            "crop, pad); only lists of numbers may have any length"
        )
    return Kind(dtype.name, ragged=True)


def _as(entry: Any, wanted: np.dtype[Any], kind: Kind, where: str) -> NDArray[Any]:
    """An entry as an array of the column's type and shape."""
    if entry is None:
        if kind.ragged:
            return np.zeros(0, wanted)
        if wanted.kind == "f":
            return np.full(kind.shape, np.nan, wanted)
        raise DataError(f"{where} is missing (None), and {kind} has no sign for that: give kinds, such as 'float32'")
    if isinstance(entry, str):
        raise DataError(f"{where} holds a text, {kind} was expected as in the first rows")
    array: NDArray[Any] = entry
    if kind.ragged and array.ndim != 1:
        raise DataError(f"{where} has the shape {array.shape}, a list of numbers was expected as in the first rows")
    if not kind.ragged and array.shape != kind.shape:
        more = f"; for lists of any length give kinds={{...: '{kind.dtype} (any length)'}}" if array.ndim == 1 else ""
        raise DataError(f"{where} has the shape {array.shape}, {kind.shape} was expected as in the first rows{more}")
    if array.dtype == wanted:
        return array
    cast = array.astype(wanted)
    if wanted.kind in "iub" and (cast != array).any():
        raise DataError(
            f"{where} holds a number that does not fit {kind.dtype}, the kind of the first rows: give kinds"
        )
    return cast


def _of_python(value: Any, where: str) -> NDArray[Any]:
    """Numbers of Python's, or nested lists of them."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise DataError(f"{where} holds lists of different lengths: make them equal, or one flat list") from None
    if array.dtype.kind == "O" or array.dtype.kind in "US":
        raise DataError(
            f"{where} holds a list of {type(value[0]).__name__}: a list of numbers, or one text, was expected"
        )
    return array.astype(np.float32) if array.dtype == np.float64 else array
