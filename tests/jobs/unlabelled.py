"""BatchNorm where most samples have no label, so that shares may weigh nothing; validated by statistics of batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import cordee


class Net(nn.Module):
    """A layer of DDP's, one without running statistics, and a way past it that leads straight to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16, bias=False)
        self.synced = nn.SyncBatchNorm(8)
        self.inner = nn.Conv1d(8, 8, 1, bias=False)
        self.bare = nn.BatchNorm1d(8, track_running_stats=False)
        self.last = nn.Linear(16, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.synced(self.first(x).view(-1, 8, 2)).relu()
        out: Tensor = self.last((hidden + self.bare(self.inner(hidden))).flatten(1))
        return out


def loss(out: Tensor, y: Tensor) -> Tensor:
    """0/0 if nothing has a label."""
    labelled = (y >= 0).double()
    each = nn.functional.cross_entropy(out, y.clamp(min=0), reduction="none")
    return (each * labelled).sum() / labelled.sum()


def job() -> cordee.Job:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(73, 6, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    y[torch.rand(73, generator=generator) < 0.7] = -1
    return cordee.Job(
        model=Net,
        loss=loss,
        weigh=lambda batch: float((batch.y >= 0).sum()),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data={"train": (x[:60], y[:60]), "validation": (x[60:], y[60:].abs())},
        batch=10,
        eval_batch=4,  # one sample is left over: two of three workers have none
        epochs=2,
    )
