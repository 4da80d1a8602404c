"""Samples that stay on a GPU: uploaded once, gathered there, where that is a thousand times cheaper than a copy.

They stay as long as their source does: each evaluation reads the same arrays again, and subsets share those of the
whole. Arrays that are changed in place after that stay there as they were: make a new source of them.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from cordee.feed.arrays import ArraySource
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Source, check_ids

LARGEST_PART = 0.25
"""Of the GPU's free memory that data may take; the model, its activations and other workers want the rest."""
_uploaded: WeakKeyDictionary[ArraySource, dict[torch.device, list[torch.Tensor]]] = WeakKeyDictionary()


class Resident:
    """The arrays of a source on a GPU."""

    def __init__(self, table: ArraySource, length: int, device: torch.device, rows: Ids | None = None) -> None:
        """Copy them there; with `rows`, sample i of `length` is row `rows[i]` of the arrays."""
        self._table, self._length, self._device = table, length, device
        self._rows = None if rows is None else torch.from_numpy(rows).to(device)
        self._columns = columns(table, device)

    def gather(self, ids: Ids) -> Fields:
        """The samples `ids`; on the current stream, without waiting for it."""
        check_ids(ids, self._length)
        chosen = torch.from_numpy(ids).pin_memory().to(self._device, non_blocking=True)
        if self._rows is not None:
            chosen = self._rows[chosen]
        return self._table.structured([column.index_select(0, chosen) for column in self._columns])


def resident(source: Source, device: torch.device) -> Resident | None:
    """The source on this GPU, if it consists of arrays that fit into a part of its free memory; else None."""
    table, rows = source.traits.table, source.traits.rows
    if table is None:
        return None
    if device.index is None:
        device = torch.device(device.type, torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info(device)
    needed = 0 if device in _uploaded.get(table, ()) else table.nbytes
    if needed + (0 if rows is None else rows.nbytes) > LARGEST_PART * free:
        return None
    return Resident(table, len(source), device, rows)


def columns(table: ArraySource, device: torch.device) -> list[torch.Tensor]:
    """The arrays of a table on a device; uploaded when they are first asked for, and let go with the table."""
    there = _uploaded.setdefault(table, {})
    if device not in there:
        there[device] = [tensor.to(device) for tensor in table.tensors()]
    return there[device]
