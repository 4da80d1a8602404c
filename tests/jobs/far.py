"""A small net that is trained from a store: from its folder, or from a web server through a small cache."""

from __future__ import annotations

import torch
from torch import nn

import cordee
from cordee.train.job import Stop


def job(store: str = "", cache: str = "", stop: int = 0, shuffle: str = "full", memory: int = 6000) -> cordee.Job:
    levels = cordee.data.Cache(memory=memory, disk=5_000, folder=cache, block=640) if cache else None
    return cordee.Job(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 9)).double(),
        loss=lambda output, target: nn.functional.cross_entropy(output, target),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        data=cordee.data.store(store, cache=levels),
        batch=29,
        epochs=2,
        shuffle=shuffle,
        stop=Stop(steps=stop or None),
        metrics={"accuracy": cordee.metrics.accuracy},
    )
