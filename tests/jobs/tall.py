"""A model that is all blocks, so that what a worker holds of it can be compared with an equal part."""

from __future__ import annotations

import sliced
import torch
from torch import nn

import cordee
from cordee.train.job import Stop


def job(blocks: int = 4, width: int = 256) -> cordee.Job:
    """Wide enough that blocks cost about the same, and what surrounds them little."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(1024, width, generator=draw, dtype=torch.float64)
    return cordee.Job(
        model=lambda: nn.Sequential(*(sliced.Block(width) for _ in range(blocks))).double(),
        loss=lambda out, y: nn.functional.cross_entropy(out[:, :10], y),
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data=(x, x[:, :10].argmax(1)),
        batch=511,
        epochs=None,
        stop=Stop(steps=3),
        clip=0.5,
    )
