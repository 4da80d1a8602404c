"""The nearest level: a GPU that holds all samples of a set, so that batches are gathered there and nothing is copied.

A set is held as a whole or not at all. One that is held in part would have batches that come in two ways: rows from
the GPU at once, the others by a copy that goes on beside the computation; to wait for the slower one in each step costs
what the faster one gains.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch

from cordee.feed.arrays import AT_ONCE, ArraySource
from cordee.feed.counted import HERE
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Source, Traits, check_ids

LARGEST_PART = 0.25
"""Of the GPU's free memory that data may take; the model, its activations and other workers want the rest."""
_TELL_S = 2.0
_uploaded: WeakKeyDictionary[object, dict[torch.device, list[torch.Tensor]]] = WeakKeyDictionary()


class Budgeted:
    """A source that may take so much of a GPU's memory; otherwise the other one."""

    def __init__(self, source: Source, nbytes: int) -> None:
        """At most `nbytes` bytes; 0: batches are always copied."""
        self.source, self.nbytes = source, nbytes

    @property
    def traits(self) -> Traits:
        """Those of the other source, with this budget."""
        return replace(self.source.traits, device=self.nbytes)

    @property
    def fingerprint(self) -> str:
        """Of the other source: the samples are the same."""
        return self.source.fingerprint

    def __len__(self) -> int:
        """As many samples."""
        return len(self.source)

    def buffers(self, count: int, *, pin: bool = False) -> Fields | None:
        """Memory of the other source."""
        return self.source.buffers(count, pin=pin)

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """As the other source has them."""
        return self.source.gather(ids, out)


class Resident:
    """The samples of a source on a device."""

    def __init__(
        self,
        columns: Sequence[torch.Tensor],
        structured: Callable[[list[torch.Tensor]], Fields],
        length: int,
        rows: Ids | None,
    ) -> None:
        """`structured` makes a batch of rows of the columns; `rows` says which of them the samples are."""
        self._columns, self._structured, self._length = columns, structured, length
        self.device = columns[0].device
        self._rows = None if rows is None else torch.from_numpy(rows).to(self.device)
        self.hits = 0
        """Samples that were gathered here."""

    def gather(self, ids: Ids) -> Fields:
        """On the current stream, without waiting for it."""
        check_ids(ids, self._length)
        self.hits += len(ids)
        HERE.count(device_samples=len(ids))
        chosen = torch.from_numpy(ids)
        if self.device.type == "cuda":
            chosen = chosen.pin_memory().to(self.device, non_blocking=True)
        if self._rows is not None:
            chosen = self._rows[chosen]
        return self._structured([column.index_select(0, chosen) for column in self._columns])


def resident(source: Source, device: torch.device, free: int) -> Resident | None:
    """The samples of a source on a device with so many bytes `free`, if they fit into its budget there; else None.

    That is a thousand times cheaper than a copy. They stay there as long as their source does: each evaluation reads
    the same arrays again, and subsets share those of the whole. What is changed in place after that is not seen. A far
    set is fetched as a whole for it, and only where its cache has a budget for devices.
    """
    traits = source.traits
    whole = traits.table if traits.table is not None else traits.far
    if whole is None or (traits.table is None and traits.device is None):
        return None
    needed = 0 if device in _uploaded.get(whole, ()) else whole.nbytes
    needed += 0 if traits.rows is None else traits.rows.nbytes
    if needed > (LARGEST_PART * free if traits.device is None else min(traits.device, free)):
        return None
    if traits.table is not None:
        return Resident(upload(traits.table, device), traits.table.structured, len(source), traits.rows)
    names = list(whole.buffers(1))
    columns = _fetched(whole, device)
    return Resident(columns, lambda found: dict(zip(names, found, strict=True)), len(source), traits.rows)


def upload(table: ArraySource, device: torch.device) -> list[torch.Tensor]:
    """The arrays of a table on a device; copied when they are first asked for, and let go with the table."""
    there = _uploaded.setdefault(table, {})
    if device not in there:
        there[device] = table.tensors(device)
    return there[device]


def _fetched(source: Source, device: torch.device) -> list[torch.Tensor]:
    """All columns of a far set on a device; a line tells now and then how far that has come."""
    there = _uploaded.setdefault(source, {})
    if device in there:
        return there[device]
    one, count, told = source.buffers(1), len(source), time.monotonic()
    assert isinstance(one, dict)
    columns = {
        name: torch.empty((count, *column.shape[1:]), dtype=column.dtype, device=device) for name, column in one.items()
    }
    each = max(1, AT_ONCE // max(1, sum(column.nbytes for column in one.values())))
    for start in range(0, count, each):
        ids = np.arange(start, min(start + each, count))
        for name, column in source.gather(ids).items():
            columns[name][start : start + len(ids)].copy_(column)
        if time.monotonic() - told > _TELL_S:
            told = time.monotonic()
            print(f"cordee: {ids[-1] + 1:,} of {count:,} samples are on {device}", file=sys.stderr, flush=True)  # noqa: T201
    there[device] = list(columns.values())
    return there[device]
