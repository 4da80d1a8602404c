"""Activations that are computed twice (checkpointing), in a layer that is used twice."""

from __future__ import annotations

from collections.abc import Callable

import mlp
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import cordee


class Model(nn.Module):
    def __init__(self, reentrant: bool, shared: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.last = nn.Linear(64, 40), nn.Linear(40, 10)
        self.inner = nn.ModuleList([nn.Linear(40, 40) for _ in range(1 if shared else 2)])
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.double())
        for layer in (self.inner[0], self.inner[-1]):
            hidden = checkpoint(self.through(layer), hidden, use_reentrant=self.reentrant)
        out: Tensor = self.last(hidden)
        return out

    def through(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda hidden: torch.tanh(layer(hidden))


def job(reentrant: bool = True, shared: bool = True) -> cordee.Job:
    return mlp.job().replace(model=lambda: Model(reentrant, shared))
