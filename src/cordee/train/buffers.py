"""Buffers that a forward pass changes (running statistics): part of a step, so undone with it when it is void."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cordee.group.rope import Rope


class BufferKeeper:
    """Remembers the buffers of models at the start of a step; copies only those that change."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._buffers: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._versions: list[int] = []

    def watch(self, model: nn.Module) -> None:
        """Remember this model's buffers too."""
        self._buffers += [buffer for buffer in model.buffers() if buffer is not None]
        self._copies = [buffer.clone() for buffer in self._buffers]
        self._versions = [buffer._version for buffer in self._buffers]

    def remember(self) -> None:
        """A step begins: this is what a void step comes back to."""
        for place, buffer in enumerate(self._buffers):
            if buffer._version != self._versions[place]:
                self._copies[place].copy_(buffer)
                self._versions[place] = buffer._version

    @torch.no_grad()
    def bring_back(self) -> None:
        """A step was void: undo what it did to the buffers."""
        for place, buffer in enumerate(self._buffers):
            if buffer._version != self._versions[place]:
                buffer.copy_(self._copies[place])
                self._versions[place] = buffer._version

    @torch.no_grad()
    def agree(self, rope: Rope, seen: int) -> None:
        """Give all replicas the mean of their floating buffers, weighted by the samples that each has seen."""
        floating = [buffer for buffer in self._buffers if buffer.is_floating_point()]
        while floating and rope.size > 1:
            weight = torch.tensor([float(seen)], dtype=torch.float64)
            sums = [buffer.double() * seen for buffer in floating]
            if not rope.agree([weight, *sums]):
                continue
            if weight:  # otherwise nothing was trained since the last time
                for buffer, total in zip(floating, sums, strict=True):
                    buffer.copy_((total / weight.to(total.device)).reshape(total.shape))
            return
