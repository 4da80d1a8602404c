"""A small MLP whose workers agree on other shares in mid-run, twice: from a later step on, and from the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import cordee
from cordee.feed.share import Share
from cordee.train.job import Stop
from cordee.train.session import stepper_of


class Reshares(cordee.Callback):
    def on_step(self, session: Any, step: Any) -> None:
        loops = stepper_of(session).loops
        if step.steps == 3:
            loops.reshare(Share("proportional", (5.0, 1.0, 2.0)), first_step=5)
        if step.steps == 8:
            loops.reshare(Share("sampled", (0.0, 1.0, 1.0), seed=4), first_step=8)


def job(epochs: int = 2) -> cordee.Job:
    return cordee.Job(
        model=lambda: nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 10)).double(),
        loss=lambda output, target: nn.functional.cross_entropy(output, target),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        data=(torch.rand(200, 64, generator=torch.Generator().manual_seed(1)).double(), torch.arange(200) % 10),
        batch=31,
        epochs=epochs,
        stop=Stop(steps=12),
        callbacks=[Reshares()],
    )
