"""Samples that stay on a GPU: uploaded once, gathered there, where that is a thousand times cheaper than a copy."""

from __future__ import annotations

import torch

from cordee.feed.arrays import ArraySource
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Source, Subset, check_ids

LARGEST_PART = 0.25
"""Of the GPU's free memory that data may take; the model, its activations and other workers want the rest."""


class Resident:
    """The arrays of a source on a GPU."""

    def __init__(self, source: ArraySource, device: torch.device, subset: Ids | None = None) -> None:
        """Copy them there; `subset`: sample i of this source is sample `subset[i]` of the arrays."""
        self._source, self._device = source, device
        self._length = len(source) if subset is None else len(subset)
        self._subset = None if subset is None else torch.from_numpy(subset).to(device)
        self._columns = [tensor.to(device) for tensor in source.tensors()]

    def gather(self, ids: Ids) -> Fields:
        """The samples `ids`; on the current stream, without waiting for it."""
        check_ids(ids, self._length)
        chosen = torch.empty(len(ids), dtype=torch.int64, pin_memory=True)
        chosen.copy_(torch.from_numpy(ids))
        chosen = chosen.to(self._device, non_blocking=True)
        if self._subset is not None:
            chosen = self._subset[chosen]
        return self._source.structured([column.index_select(0, chosen) for column in self._columns])


def resident(source: Source, device: torch.device) -> Resident | None:
    """The source on this GPU, if it consists of arrays that fit into a part of its free memory; else None."""
    subset = source.ids if isinstance(source, Subset) else None
    arrays = source.source if isinstance(source, Subset) else source
    if not isinstance(arrays, ArraySource):
        return None
    free, _ = torch.cuda.mem_get_info(device)
    if arrays.nbytes + (0 if subset is None else subset.nbytes) > LARGEST_PART * free:
        return None
    return Resident(arrays, device, subset)
