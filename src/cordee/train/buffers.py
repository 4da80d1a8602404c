"""Buffers that a forward pass changes (running statistics): part of a step, so undone with it when it is void."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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

    def floating(self) -> list[Tensor]:
        """The buffers that hold numbers that can be averaged."""
        return [buffer for buffer in self._buffers if buffer.is_floating_point()]

    @torch.no_grad()
    def set_floating(self, values: list[Tensor]) -> None:
        """Give the floating buffers these values, in their order."""
        for buffer, value in zip(self.floating(), values, strict=True):
            buffer.copy_(value)
