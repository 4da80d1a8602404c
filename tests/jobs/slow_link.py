"""A small model under sync=auto, to which the link seems to be slow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import cordee
from cordee.sync.measuring import Link


class Compared(nn.Module):
    """Its loss compares the rows of the global batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.body(x)
        return rows - cordee.gather(rows).mean(0)


def job(kind: str = "") -> cordee.Job:
    """`kind`: a model that needs the other replicas in its forward pass, by BatchNorm or by `cordee.gather`."""
    Link.measure = lambda self: 1e3  # type: ignore[method-assign]
    models = {
        "": lambda: nn.Linear(64, 10),
        "batchnorm": lambda: nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)),
        "gather": Compared,
    }
    return cordee.Job(
        model=models[kind],
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=cordee.data.digits(),
        batch=64,
        epochs=2,
    )
