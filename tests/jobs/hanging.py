"""Samples that take for ever to be read on one worker, from some step on."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

import cordee
from cordee.core.world import World


class Hanging:
    """Sample 150 and those behind it hang on the worker `worker`."""

    def __init__(self, worker: int) -> None:
        self.hangs = World.from_env().rank == worker

    def __len__(self) -> int:
        return 200

    def __getitem__(self, place: int) -> Any:
        if self.hangs and place >= 150:
            threading.Event().wait()
        return torch.full((4,), float(place)), place % 2


def job(worker: int = 1) -> cordee.Job:
    return cordee.Job(
        model=lambda: nn.Linear(4, 2),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        data=cordee.data.dataset(Hanging(worker)),
        batch=20,
        shuffle="none",
        preflight=False,
    )
