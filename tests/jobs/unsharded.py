"""Models whose state cannot be sharded: an embedding with sparse gradients, and a loss that reads a block's weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import cordee


def job(kind: str) -> cordee.Job:
    def objective(model: Any, batch: Any) -> Tensor:
        loss = nn.functional.cross_entropy(model(batch.x).mean(1), batch.y)
        return loss + (model[1].weight.square().mean() if kind == "weights" else 0.0)

    draw = torch.Generator().manual_seed(1)
    return cordee.Job(
        model=lambda: nn.Sequential(nn.Embedding(40, 8, sparse=kind == "sparse"), nn.Linear(8, 4), nn.Linear(4, 2)),
        objective=objective,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=(torch.randint(0, 40, (32, 5), generator=draw), torch.randint(0, 2, (32,), generator=draw)),
        batch=8,
    )
