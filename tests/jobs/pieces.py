"""A small model in fp32 with dropout, which `exact=true` trains to the same bits on any number of workers.

`dead` ("worker:step:place") ends a worker after so many steps: in its next `loss`, or before its next `update`.
After step `awaits` all wait until another worker has come.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop
from cordee.train.session import stepper_of


class Net(nn.Module):
    """A convolution, dropout, and a layer that only pieces with bright samples give a gradient."""

    def __init__(self, norm: str, drop: float) -> None:
        super().__init__()
        norms = {"group": lambda: nn.GroupNorm(2, 6), "batch": lambda: nn.BatchNorm2d(6)}
        self.body = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3), norms[norm](), nn.ReLU(), nn.Dropout(drop), nn.Flatten()
        )
        self.head, self.some = nn.Linear(216, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out + self.some(x) if bool((x.mean(1) > 0.40).any()) else out


def error(output: Tensor, target: Tensor) -> Tensor:
    return (output.softmax(1) - nn.functional.one_hot(target, 10)).abs().mean(1)


def job(
    dead: str = "",
    awaits: int = -1,
    weighed: bool = False,
    norm: str = "group",
    drop: float = 0.2,
    stop_steps: int | None = None,
    save_steps: int | None = None,
    keep_best: bool = False,
) -> cordee.Job:
    data = cordee.data.digits(validation=0.1)
    x, y = (data.train.gather(np.arange(523))[name] for name in ("x", "y"))
    worker, after, place = dead.split(":") if dead else ("-1", "-1", "")
    done = [0]

    class Counting(cordee.Callback):
        def on_step(self, session: Any, step: Any) -> None:
            done[0] = step.steps
            deadline, team = time.monotonic() + 120.0, stepper_of(session).team
            while (
                step.steps == awaits
                and not team.channel.newcomers
                and team.membership.size < cordee.World.from_env().size
            ):
                assert time.monotonic() < deadline
                time.sleep(0.002)

    def meet(here: str) -> None:
        if here == place and done[0] == int(after) and os.environ["CORDEE_RANK"] == worker:
            os.kill(os.getpid(), signal.SIGKILL)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        meet("loss")
        return nn.functional.cross_entropy(output, target)

    def optimizer(params: Any) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(params, lr=4e-3)
        made.register_step_pre_hook(lambda *_: meet("update"))
        return made

    return cordee.Job(
        model=lambda: Net(norm, drop),
        loss=loss,
        optimizer=optimizer,
        data={"train": (x, y), "validation": data.validation},
        batch=100,
        epochs=2,
        clip=0.5,
        weigh=(lambda batch: float(batch.y.double().add(0.1).sum())) if weighed else None,
        metrics={"error": error},
        preflight=False,
        schedule=lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 12),
        schedule_per="step",
        callbacks=[Counting()],
        stop=Stop(steps=stop_steps),
        save=Save(steps=save_steps, keep_best="-error" if keep_best else None),
    )
