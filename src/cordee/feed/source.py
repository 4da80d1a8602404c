"""Where samples come from: the interface that every source of data has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from cordee.feed.permute import Ids

Fields = Any
"""The data of samples: a tensor whose first dimension counts samples, or a tuple, list or dict of such."""


@dataclass(frozen=True)
class Traits:
    """What a source is like, as far as those who read from it go by it."""

    runs_user_code: bool = True
    """The user's code makes the samples: one thread at a time runs it, with random draws that belong to the samples."""
    draws: bool | None = False
    """Whether samples draw from the generators of Python or NumPy; None: not known before some were read."""
    table: Any = None
    """The `ArraySource` of which batches are rows: a GPU may hold it, and its columns can be looked through."""
    stream: Any = None
    """The `StreamSource` that samples come from: they are read in order, without end, and numbered as they come."""
    rows: Ids | None = None
    """Which rows of the table, or of the source that is far or has holders, the samples are; None for all of them, in
    their order."""
    late: tuple[Any, ...] = ()
    """What is done to batches on their device, as `feed/late.py` has it."""
    far: Any = None
    """The `Expecting` that wants to know beforehand what is read: the samples come from elsewhere."""
    device: int | None = None
    """Bytes of a GPU's memory that the samples may take; None: a quarter of what is free, for what lies in arrays."""
    holders: Any = None
    """`Holders`: which hosts hold which samples, where that makes a difference."""


@runtime_checkable
class Source(Protocol):
    """Samples 0 .. len-1, gathered by id. One thread at a time calls `gather`."""

    @property
    def traits(self) -> Traits:
        """What it is like."""
        ...

    @property
    def fingerprint(self) -> str:
        """A short text that changes when the data does; cheap: it looks at a few samples only."""
        ...

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def buffers(self, count: int, *, pin: bool = False) -> Fields | None:
        """Memory for `count` samples, for use as `out`; None when the source cannot fill memory that it is given."""
        ...

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """The samples `ids` in this order; in the first rows of `out` if given, else in new memory."""
        ...


class Subset:
    """Some samples of another source, in the order of `ids`."""

    def __init__(self, source: Source, ids: Ids) -> None:
        """Make sample i of this source sample `ids[i]` of the other."""
        self.source = source
        self.ids = np.ascontiguousarray(ids, dtype=np.int64)

    @property
    def traits(self) -> Traits:
        """Those of the other source, for the rows that were chosen."""
        traits = self.source.traits
        return replace(traits, rows=self.ids if traits.rows is None else traits.rows[self.ids])

    def __len__(self) -> int:
        """How many samples were chosen."""
        return len(self.ids)

    @property
    def fingerprint(self) -> str:
        """Of the other source and of the choice."""
        return digest_of([self.source.fingerprint.encode(), self.ids])

    def buffers(self, count: int, *, pin: bool = False) -> Fields | None:
        """Memory of the other source."""
        return self.source.buffers(count, pin=pin)

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """Gathered by the other source."""
        return self.source.gather(self.ids[ids], out)


def kind_of(source: Any) -> str:
    """What a source is called in messages: by the user's own dataset or the whole that it is a part of, if any."""
    inner = getattr(source, "dataset", None) or getattr(source, "source", None)
    return type(source).__name__ if inner is None else kind_of(inner)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], fields: Fields) -> Fields:
    """The same structure with every tensor changed; anything else in it stays."""
    if isinstance(fields, torch.Tensor):
        return change(fields)
    if isinstance(fields, Mapping):
        return {name: map_tensors(change, value) for name, value in fields.items()}
    if isinstance(fields, tuple) and hasattr(fields, "_fields"):  # a named tuple takes its values one by one
        return type(fields)(*(map_tensors(change, value) for value in fields))
    if isinstance(fields, tuple | list):
        return type(fields)(map_tensors(change, value) for value in fields)
    return fields


def check_ids(ids: Ids, count: int) -> None:
    """Refuse ids outside 0 .. count-1, before fast indexing that would clip them in silence."""
    if len(ids) and ids.view(np.uint64).max() >= count:  # one look: a negative id is a very large one there
        raise IndexError(f"sample ids {ids.min()} to {ids.max()} are not in 0 to {count - 1}")


def spread(count: int, most: int = 64) -> list[int]:
    """Some places of 0 .. count-1, from first to last."""
    return sorted(set(np.linspace(0, count - 1, most).astype(int).tolist())) if count else []


def digest_of(parts: Iterable[bytes | NDArray[Any]]) -> str:
    """A fingerprint made of texts and arrays: 16 hex digits."""
    whole = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes()
        whole.update(len(raw).to_bytes(8, "little") + raw)
    return whole.hexdigest()[:16]
