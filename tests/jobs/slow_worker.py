"""Equal layers, which take four times as long on one worker as on the others."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

import cordee
from cordee.core.world import World
from cordee.train.job import Stop


class Layer(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear, self.seconds = nn.Linear(16, 16), seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        out: Tensor = x + torch.tanh(self.linear(x))
        return out


def job(slow: int = -1) -> cordee.Job:
    """`slow`: the number of that worker."""
    seconds = 0.008 if World.from_env().rank == slow else 0.002
    draw = torch.Generator().manual_seed(1)
    return cordee.Job(
        model=lambda: nn.Sequential(*(Layer(seconds) for _ in range(8))).double(),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data=(torch.rand(50, 16, generator=draw).double(), torch.arange(50) % 16),
        batch=11,
        epochs=2,
        clip=0.5,
        stop=Stop(steps=7),
    )
