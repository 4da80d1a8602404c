"""A loss so large that its gradient, scaled for fp16, does not fit at first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Stop


def loss(output: Tensor, target: Tensor) -> Tensor:
    return 30.0 * nn.functional.cross_entropy(output, target)


def job(stop_steps: int | None = None) -> cordee.Job:
    return cordee.Job(
        model=lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
        loss=loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
        data=cordee.data.digits(),
        batch=101,
        stop=Stop(steps=stop_steps),
    )
