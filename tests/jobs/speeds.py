"""A model that takes four times as long for each sample on one worker, also from some step on only."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

import cordee
from cordee.core.world import World
from cordee.train.job import Stop


class Pace:
    """Seconds that a sample takes on this worker."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Model(nn.Module):
    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 8))
        self.pace = pace

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(self.pace.seconds * len(x))
        out: Tensor = self.layers(x)
        return out


class Slows(cordee.Callback):
    """This worker is slow after the first steps."""

    def __init__(self, pace: Pace, first: int) -> None:
        self._pace, self._first = pace, first

    def on_step(self, session: Any, step: Any) -> None:
        self._pace.seconds = 0.004 if step.steps >= self._first else 0.001


def job(slow: int = -1, first: int = 0, steps: int = 14, epochs: int = 2) -> cordee.Job:
    """`slow`: the number of that worker."""
    draw = torch.Generator().manual_seed(1)
    is_slow = World.from_env().rank == slow
    pace = Pace(0.004 if is_slow and not first else 0.001)
    return cordee.Job(
        model=lambda: Model(pace).double(),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data=(torch.rand(340, 16, generator=draw).double(), torch.arange(340) % 8),
        batch=48,
        epochs=epochs,
        stop=Stop(steps=steps),
        callbacks=[Slows(pace, first)] if is_slow else [],
    )
