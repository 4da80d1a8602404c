"""A small CNN with BatchNorm on digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop


class Cnn(nn.Module):
    """No bias before BatchNorm: its true gradient is zero, and Adam would blow the rounding up."""

    def __init__(self, dtype: str, momentum: float | None) -> None:
        super().__init__()
        self.dtype = getattr(torch, dtype)
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6, momentum=momentum),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, stride=2, bias=False),
            nn.BatchNorm2d(8, affine=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(72, 24, bias=False),
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.Linear(24, 10),
        ).to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.to(self.dtype).view(-1, 1, 8, 8))
        return out


def job(
    dtype: str = "float64", cumulative: bool = False, stop_steps: int | None = None, save_steps: int | None = None
) -> cordee.Job:
    return cordee.Job(
        model=lambda: Cnn(dtype, None if cumulative else 0.1),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data=cordee.data.digits(validation=0.1, test=0.1),
        batch=101,
        metrics={"accuracy": cordee.metrics.accuracy},
        stop=Stop(steps=stop_steps),
        save=Save(steps=save_steps),
    )
