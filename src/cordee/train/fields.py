"""The fields of a batch by name, and their shapes in words: for messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def named_tensors(fields: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in the data of a batch, each with the name of its field."""
    if isinstance(fields, Tensor):
        yield name or "x", fields
    elif isinstance(fields, Mapping):
        for key, value in fields.items():
            yield from named_tensors(value, f"{name}.{key}" if name else str(key))
    elif isinstance(fields, tuple | list):
        for place, value in enumerate(fields):
            yield from named_tensors(value, f"{name}.{place}" if name else f"field {place}")


def dtype_name(tensor: Tensor) -> str:
    """`float32`, for instance."""
    return str(tensor.dtype).removeprefix("torch.")


def shapes(fields: Any) -> str:
    """Shape and type of all that is in there."""
    if isinstance(fields, Tensor):
        return f"{tuple(fields.shape)} {dtype_name(fields)}"
    if isinstance(fields, Mapping):
        return ", ".join(f"{name} {shapes(value)}" for name, value in fields.items())
    if isinstance(fields, tuple | list):
        return ", ".join(shapes(value) for value in fields)
    return type(fields).__name__
