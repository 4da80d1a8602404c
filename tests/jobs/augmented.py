"""Small whole numbers that travel, become floats on the device, and are augmented there in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mlp import Mlp
from torch import nn

import cordee
from cordee.train.job import Stop


def as_floats(batch: cordee.Batch) -> Any:
    assert batch.x.dtype == torch.uint8
    return {"x": batch.x.double() / 16, "y": batch.y}


def noisy(batch: cordee.Batch) -> Any:
    drawn = cordee.data.draws(batch, 65).double()
    flipped = torch.where(drawn[:, :1] < 0.5, batch.x.flip(1), batch.x)
    return {"x": flipped + 0.2 * (drawn[:, 1:] - 0.5), "y": batch.y}


def odd(batch: cordee.Batch) -> Any:
    return {"x": batch.x + 0.1 * torch.rand_like(batch.x), "y": batch.y}


def mixed(batch: cordee.Batch) -> Any:
    return {"x": batch.x - batch.x.mean(0), "y": batch.y}


def job(augment: str = "noisy", epochs: int = 2, stop_steps: int | None = None) -> cordee.Job:
    digits = cordee.data.digits(validation=0.1, test=0.1)
    x, y = (digits.train.gather(np.arange(203))[name] for name in ("x", "y"))
    held = {name: digits.sets[name].gather(np.arange(60)) for name in ("validation", "test")}
    small = {name: (np.asarray(one["x"] * 16, np.uint8), one["y"]) for name, one in held.items()}
    data = cordee.data.arrays(np.asarray(x * 16, np.uint8), y, **small).transform(as_floats)
    return cordee.Job(
        model=lambda: Mlp("float64", ""),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=data.augment({"noisy": noisy, "odd": odd, "mixed": mixed}[augment]) if augment else data,
        batch=50,  # the last one holds 3 samples: of three workers some have none
        epochs=epochs,
        seed=11,
        metrics={"accuracy": cordee.metrics.accuracy},
        stop=Stop(steps=stop_steps),
    )
