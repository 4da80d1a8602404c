"""Samples that stay on a GPU: uploaded once, gathered there, where that is a thousand times cheaper than a copy.

They stay as long as their source does: each evaluation reads the same arrays again, and subsets share those of the
whole. Arrays that are changed in place after that stay there as they were: make a new source of them.
"""

from __future__ import annotations

from collections import deque
from weakref import WeakKeyDictionary

import torch

from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Source, Table, check_ids

LARGEST_PART = 0.25
"""Of the GPU's free memory that data may take; the model, its activations and other workers want the rest."""
_SLOTS = 8
"""Batches whose ids may be on their way at once."""
_uploaded: WeakKeyDictionary[Table, dict[torch.device, list[torch.Tensor]]] = WeakKeyDictionary()


class Resident:
    """The arrays of a source on a GPU."""

    def __init__(self, table: Table, length: int, device: torch.device, rows: Ids | None = None) -> None:
        """Copy them there; with `rows`, sample i of `length` is row `rows[i]` of the arrays."""
        self._table, self._length, self._device = table, length, device
        self._rows = None if rows is None else torch.from_numpy(rows).to(device)
        self._columns = columns(table, device)
        self._slots: deque[_Slot] = deque()

    def gather(self, ids: Ids) -> Fields:
        """The samples `ids`; on the current stream, without waiting for it."""
        check_ids(ids, self._length)
        chosen = self._upload(ids)
        if self._rows is not None:
            chosen = self._rows[chosen]
        return self._table.structured([column.index_select(0, chosen) for column in self._columns])

    def _upload(self, ids: Ids) -> torch.Tensor:
        """The ids on the device, over memory that is used in turn: pinning anew would cost more than the copy."""
        if len(self._slots) < _SLOTS or self._slots[0].pinned.numel() < len(ids):
            self._slots.appendleft(_Slot(len(ids), self._device))
        if len(self._slots) > _SLOTS:
            self._slots.pop()
        slot = self._slots[0]
        self._slots.rotate(-1)
        slot.copied.synchronize()  # long past, unless the GPU is as many batches behind
        slot.pinned[: len(ids)].numpy()[:] = ids
        chosen = slot.there[: len(ids)].copy_(slot.pinned[: len(ids)], non_blocking=True)
        slot.copied.record()
        return chosen


class _Slot:
    """Memory for the ids of one batch, here and on the device."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.pinned = torch.empty(size, dtype=torch.int64, pin_memory=True)
        self.there = torch.empty(size, dtype=torch.int64, device=device)
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]


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


def columns(table: Table, device: torch.device) -> list[torch.Tensor]:
    """The arrays of a table on a device; uploaded when they are first asked for, and let go with the table."""
    there = _uploaded.setdefault(table, {})
    if device not in there:
        there[device] = [tensor.to(device) for tensor in table.tensors()]
    return there[device]
