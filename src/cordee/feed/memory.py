"""The memory of batches: a few sets of buffers in turn, pinned for a GPU; or a GPU that holds all samples.

These sets are no `Pool`: a batch's memory is used again when its turn comes, whether or not the user holds the batch,
so there is no moment at which it is released; and nothing has to be asked or counted for it in a step.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch

from cordee.feed.batch import named_tensors
from cordee.feed.cache.device import Resident, resident
from cordee.feed.permute import Ids
from cordee.feed.reading import reading
from cordee.feed.source import Fields, Source, map_tensors


@dataclass
class _Buffers:
    """Memory for `capacity` samples; without `fields` it only stands for a batch that makes its own."""

    capacity: int = 0
    fields: Fields | None = None
    copied: torch.cuda.Event | None = None


class Gathered(NamedTuple):
    """Samples that were gathered, on their device or on the way to it."""

    ids: Ids
    fields: Fields
    copied: torch.cuda.Event | None = None


class Memory:
    """Room for the last `depth` batches and the next one: the loop that gathers a batch has taken the one before it."""

    def __init__(self, source: Source, device: torch.device, depth: int, *, seed: int, deadline_s: float) -> None:
        """Allocate nothing before it is needed; `seed` is for random draws of the user's code."""
        self.on_gpu = device.type == "cuda"
        self._source = source
        self._runs_user_code = source.traits.runs_user_code
        self._seed, self._deadline_s = seed, deadline_s
        self._device = device
        self._depth = depth
        self._largest = 0
        self.renew()
        self._stream = torch.cuda.Stream(device) if self.on_gpu else None  # type: ignore[no-untyped-call]
        self._resident = _resident(source, device) if self.on_gpu else None
        self.copies = self.on_gpu and self._resident is None
        """Whether batches have a way to go after they were gathered."""

    def renew(self) -> None:
        """Begin with new sets: of the old ones, one may hold a batch that is never taken."""
        self._sets = deque(_Buffers() for _ in range(self._depth + 1))

    def gather(self, ids: Ids, epoch: int = 0) -> Gathered:
        """Gather samples of an epoch, and begin their way to the device."""
        if self._resident is not None:
            return Gathered(ids, self._resident.gather(ids))
        sets = self._sets
        buffers = sets[0]
        if buffers.copied is not None:
            buffers.copied.synchronize()  # long past, unless the GPU is `depth` batches behind
        if buffers.capacity < len(ids) or not buffers.capacity:
            # As large as the largest so far, so that memory is made a few times only, whatever sizes come.
            self._largest = max(self._largest, len(ids))
            buffers.fields = self._source.buffers(self._largest, pin=self.on_gpu)
            buffers.capacity = self._largest
        with reading(self._seed, epoch, deadline_s=self._deadline_s) if self._runs_user_code else nullcontext():
            fields = self._source.gather(ids, buffers.fields)
        if self.on_gpu:
            fields = self._copy(fields, buffers)
        elif self._device.type != "cpu":
            fields = map_tensors(lambda tensor: tensor.to(self._device), fields)
        sets.rotate(-1)
        return Gathered(ids, fields, buffers.copied)

    def await_copy(self, gathered: Gathered) -> None:
        """Make a batch safe to use now, on the current stream."""
        if gathered.copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(gathered.copied)
            for _, tensor in named_tensors(gathered.fields):
                tensor.record_stream(stream)  # the allocator must not reuse its memory before that

    def _copy(self, fields: Fields, buffers: _Buffers) -> Fields:
        """Copy to the GPU on a stream of our own, from pinned memory, without waiting for it."""
        if buffers.fields is None:
            fields = map_tensors(torch.Tensor.pin_memory, fields)
        with torch.cuda.stream(self._stream):
            moved = map_tensors(lambda tensor: tensor.to(self._device, non_blocking=True), fields)
            buffers.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            buffers.copied.record(self._stream)
        return moved


def _resident(source: Source, device: torch.device) -> Resident | None:
    """The samples on this GPU, if it is to hold them."""
    if device.index is None:
        device = torch.device(device.type, torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info(device)
    return resident(source, device, free)
