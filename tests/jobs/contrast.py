"""Losses that compare the samples of a batch with each other, over `cordee.gather`."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cordee
from cordee.train.session import stepper_of


class Towers(nn.Module):
    """Two encoders, of the left and the right half of an image, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (
            nn.Sequential(nn.Linear(32, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 6)).double() for _ in range(2)
        )
        self.temperature = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        halves = x.double().chunk(2, dim=1)
        return self.left(halves[0]), self.right(halves[1])


def nt_xent(model: Any, batch: cordee.Batch) -> Tensor:
    """SimCLR: the two views of a sample are near, all other pairs of the batch far."""
    views = [nn.functional.normalize(cordee.gather(view), dim=1) for view in model(batch.x)]
    z = torch.cat(views)
    likeness = (z @ z.T / model.temperature).fill_diagonal_(-torch.inf)
    partner = torch.arange(len(z)).roll(len(z) // 2)
    return nn.functional.cross_entropy(likeness, partner)


def clip(model: Any, batch: cordee.Batch) -> Tensor:
    left, right = (nn.functional.normalize(cordee.gather(view), dim=1) for view in model(batch.x))
    scores = left @ right.T * model.temperature.exp()
    own = torch.arange(len(scores))
    return (nn.functional.cross_entropy(scores, own) + nn.functional.cross_entropy(scores.T, own)) / 2


def triplet(model: Any, batch: cordee.Batch) -> Tensor:
    """The farthest sample of the own class and the nearest of another, in the whole batch; and a term of the share."""
    left, right = model(batch.x)
    z, labels = cordee.gather(left), cordee.gather(batch.y)
    far = torch.cdist(z, z.detach()).square()
    same = labels[:, None] == labels
    hardest = torch.where(same, far, -torch.inf).amax(1) - torch.where(same, torch.inf, far).amin(1)
    return nn.functional.relu(hardest + 1.0).mean() + 0.1 * right.square().sum(1).mean()


def barlow(model: Any, batch: cordee.Batch) -> Tensor:
    """The correlation of the two views over the batch is to be the identity."""
    left, right = (cordee.gather(view) for view in model(batch.x))
    left, right = ((one - one.mean(0)) / (one.std(0) + 1e-3) for one in (left, right))
    correlation = left.T @ right / len(left)
    return (correlation - torch.eye(6, dtype=torch.float64)).square().sum() * model.temperature


class Falls(cordee.Callback):
    """Worker `who` dies within step `step`, after `calls` gathers of it."""

    def __init__(self, who: int, step: int, calls: int) -> None:
        self.dies_at = (who, step, calls)

    def on_start(self, session: Any) -> None:
        team, (who, step, calls) = stepper_of(session).team, self.dies_at
        begin, left = team.layers.sum, [calls]

        def counted(tensor: Tensor) -> Any:
            if team.membership.worker == who and team.steps == step:
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
            return begin(tensor)

        team.layers.sum = counted


def job(kind: str = "nt_xent", weighed: bool = False, falls: int = -1, calls: int = 0, clip: float = 0.0) -> cordee.Job:
    data = cordee.data.digits(validation=0.1)
    x, y = (data.train.gather(np.arange(120))[name] for name in ("x", "y"))
    held = tuple(data.validation.gather(np.arange(39))[name] for name in ("x", "y"))  # type: ignore[union-attr]
    return cordee.Job(
        model=Towers,
        objective=globals()[kind],
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data={"train": (x, y), "validation": held},
        batch=37,  # the last one of an epoch has 9
        epochs=2,
        weigh=(lambda batch: float((batch.ids < 40).sum())) if weighed else None,
        clip=clip or None,
        callbacks=[Falls(falls, 5, calls)] if falls >= 0 else [],
    )
