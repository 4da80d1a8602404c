"""A job whose objective draws, and leaves a mark for every pass in a folder: one file per process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop


def job(kind: str = "mean", marks: str = "") -> cordee.Job:
    mortal = kind == "dies" and cordee.World.from_env().rank == 1

    def objective(model: nn.Module, batch: Any) -> Tensor:
        if mortal and len(batch) != 8:  # in its part of the tests
            os.kill(os.getpid(), signal.SIGKILL)
        if marks:
            with (Path(marks) / str(os.getpid())).open("a") as file:
                file.write(".")
        one, other = (model(batch.x + 0.1 * torch.randn_like(batch.x)) for _ in range(2))
        if kind == "contrast":
            return nn.functional.cross_entropy(one @ other.T, torch.arange(len(one)))
        if kind == "fails" and len(batch) == 7:
            raise ValueError("seven is too much")
        return nn.functional.cross_entropy(one + other, batch.y)

    return cordee.Job(
        model=lambda: nn.Linear(64, 10),
        objective=objective,
        data=cordee.data.digits(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch=64,
        stop=Stop(steps=1),
        save=Save(epochs=None),
    )
