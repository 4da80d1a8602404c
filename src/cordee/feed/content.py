"""What a dataset holds, as far as that can be told without reading samples, which may be drawn at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from cordee.feed.source import digest_of

_PLACES, _MEMBERS, _DEPTH = 64, 8, 4


def content_of(dataset: Any) -> str:
    """A digest of arrays and lists that it holds, of those as long as itself or longer: some places, first to last.

    Shorter ones may be anything, but those inside them count, and so do datasets that it is made of.
    """
    if isinstance(dataset, list | tuple):
        return digest_of(part.encode() for part in _parts(dataset, 1, _DEPTH))
    return digest_of(_of_attributes(dataset, _DEPTH))


def _of_attributes(dataset: Any, depth: int) -> Iterator[bytes]:
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        for part in _parts(value, max(1, len(dataset)), depth):
            yield f"{name} {part}".encode()


def _parts(value: Any, least: int, depth: int) -> Iterator[str]:
    if isinstance(value, Dataset) and depth and hasattr(value, "__len__"):
        yield from map(bytes.decode, _of_attributes(value, depth - 1))
    elif isinstance(value, torch.Tensor | np.ndarray):
        if np.prod(value.shape) >= least:
            yield _of_array(value)
    elif isinstance(value, Mapping):
        yield from _parts(list(value.items() if len(value) >= least else value.values()), least, depth)
    elif isinstance(value, list | tuple | range):
        if len(value) >= least:
            yield f"{len(value)} {[_of_entry(value[place]) for place in _places(len(value))]}"
        elif depth:
            for one in value[:_PLACES]:
                yield from _parts(one, least, depth - 1)


def _of_entry(value: Any) -> str:
    """One of a list; of a text only what follows the last slash, for the same files may lie in another folder."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return _of_array(value)
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple):
        return str([_of_entry(one) for one in value[:_MEMBERS]])
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | PurePath):
        return str(value).rpartition("/")[2]
    return repr(value) if isinstance(value, bool | int | float | bytes | None) else ""


def _of_array(value: Any) -> str:
    """Its shape, its type, and numbers at some places; of what is not plainly stored, shape and type."""
    words = f"{tuple(value.shape)} {value.dtype}"
    try:
        flat = value.detach().reshape(-1) if isinstance(value, torch.Tensor) else value.reshape(-1)
        return f"{words} {flat[_places(len(flat))].tolist()}"
    except (RuntimeError, TypeError, NotImplementedError):
        return words


def _places(count: int) -> list[int]:
    return sorted(set(np.linspace(0, count - 1, _PLACES).astype(int).tolist())) if count else []
