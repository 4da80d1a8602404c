"""A gather that was begun. When each member came to it travels along, so that all know for whom they waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_STAMP = 8
"""Bytes of a time of day before what is gathered."""


@dataclass(frozen=True)
class Gathering:
    """Its collective, where everybody's part comes to lie, our own, and when we came."""

    work: Any
    parts: list[Tensor]
    tensor: Tensor
    arrived: float

    def latest(self) -> float:
        """When the last member came; on a GPU, where nothing travels along, it is taken to be us."""
        if not self.tensor.is_cpu:
            return self.arrived
        return max(float(part[:_STAMP].view(torch.float64)) for part in self.parts)

    def unpacked(self) -> list[Tensor]:
        """Everybody's tensor, in rank order."""
        if not self.tensor.is_cpu:
            return self.parts
        return [part[_STAMP:].view(self.tensor.dtype).reshape(self.tensor.shape) for part in self.parts]


def stamped(tensor: Tensor, arrived: float) -> Tensor:
    """What is sent: the bytes of a time and of `tensor`; on a GPU `tensor` alone."""
    if not tensor.is_cpu:
        return tensor
    stamp = torch.tensor([arrived], dtype=torch.float64).view(torch.uint8)
    return torch.cat([stamp, tensor.reshape(-1).view(torch.uint8)])
