"""The memory that batches are gathered into: a few sets of buffers in turn, pinned for a GPU."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from cordee.feed.fields import named_tensors
from cordee.feed.permute import Ids
from cordee.feed.reading import reading
from cordee.feed.resident import resident
from cordee.feed.source import Fields, Source, map_tensors


@dataclass
class Buffers:
    """Memory for `capacity` samples; without `fields` it only stands for a batch that makes its own."""

    capacity: int = 0
    fields: Fields | None = None
    copied: torch.cuda.Event | None = None


@dataclass(frozen=True)
class Gathered:
    """Samples that were gathered, on their device or on the way to it."""

    ids: Ids
    fields: Fields
    buffers: Buffers | None
    """None: the batch has memory of its own, which the allocator takes back."""


class Memory:
    """`depth` sets of buffers for batches that were handed out, and one for the next; more only when waited for."""

    def __init__(self, source: Source, device: torch.device, depth: int, *, seed: int, deadline_s: float) -> None:
        """Allocate nothing before it is needed; `seed` is for random draws of the user's code."""
        self.on_gpu = device.type == "cuda"
        self._source = source
        self._runs_user_code = source.traits.runs_user_code
        self.plain = not self._runs_user_code and device.type == "cpu"
        self._seed, self._deadline_s = seed, deadline_s
        self._device = device
        self._depth = depth
        self._lock = threading.Lock()  # for the counts and queues: one thread gathers, another hands out
        self._made = 0
        self._largest = 0
        self._free: deque[Buffers] = deque()
        self._handed_out: deque[Buffers] = deque()
        self._stream = torch.cuda.Stream(device) if self.on_gpu else None  # type: ignore[no-untyped-call]
        self._resident = resident(source, device) if self.on_gpu else None
        self.copies = self.on_gpu and self._resident is None
        """Whether batches have a way to go after they were gathered."""

    def gather(self, ids: Ids, epoch: int = 0) -> Gathered:
        """Gather samples of an epoch, and begin their way to the device."""
        if self._resident is not None:
            return Gathered(ids, self._resident.gather(ids), None)
        buffers = self._acquire(len(ids))
        try:
            with reading(self._seed, epoch, deadline_s=self._deadline_s) if self._runs_user_code else nullcontext():
                fields = self._source.gather(ids, buffers.fields)
            if self.on_gpu:
                fields = self._copy(fields, buffers)
            elif self._device.type != "cpu":
                fields = map_tensors(lambda tensor: tensor.to(self._device), fields)
        except BaseException:
            self.give_back(buffers)
            raise
        return Gathered(ids, fields, buffers)

    def hand_out(self, gathered: Gathered) -> None:
        """Make the batch safe to use now, and its memory free after `depth` more."""
        if gathered.buffers is None:
            return
        if gathered.buffers.copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(gathered.buffers.copied)
            for _, tensor in named_tensors(gathered.fields):
                tensor.record_stream(stream)  # the allocator must not reuse its memory before that
        self._handed_out.append(gathered.buffers)
        while len(self._handed_out) > self._depth:
            self.give_back(self._handed_out.popleft())

    def give_back(self, buffers: Buffers | None) -> None:
        """Let the next batch have this memory."""
        if buffers is None:
            return
        with self._lock:
            if self._made > self._depth + 1:  # one more was made for a batch that was waited for
                self._made -= 1
            else:
                self._free.append(buffers)

    def _acquire(self, count: int) -> Buffers:
        with self._lock:
            if self._free:
                buffers = self._free.popleft()
            else:
                buffers = Buffers()
                self._made += 1
        if buffers.copied is not None:
            buffers.copied.synchronize()  # long past, unless the GPU is `depth` batches behind
            buffers.copied = None
        if buffers.capacity < count or not buffers.capacity:
            # As large as the largest so far, so that memory is made a few times only, whatever sizes come.
            self._largest = max(self._largest, count)
            buffers.fields = self._source.buffers(self._largest, pin=self.on_gpu)
            buffers.capacity = self._largest
        return buffers

    def _copy(self, fields: Fields, buffers: Buffers) -> Fields:
        """Copy to the GPU on a stream of our own, from pinned memory, without waiting for it."""
        if buffers.fields is None:
            fields = map_tensors(torch.Tensor.pin_memory, fields)
        with torch.cuda.stream(self._stream):
            moved = map_tensors(lambda tensor: tensor.to(self._device, non_blocking=True), fields)
            buffers.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            buffers.copied.record(self._stream)
        return moved
