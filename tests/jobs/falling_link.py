"""A model of 1 MB under sync=auto, told how long a step takes, all of it to compute, and how fast the link is."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cordee
from cordee.group.team import Team
from cordee.sync import adaptive, measuring
from cordee.sync.measuring import Clock, Link, Took
from cordee.train.session import stepper_of

MBIT = 1e6 / 8


class Told(cordee.Callback):
    """A clock by which each step takes `step_s`, and exchanges what they are told; worker 2 may die after a step."""

    def __init__(self, step_s: float, after: int) -> None:
        self.step_s, self.after, self.now = step_s, after, 1.0

    def perf_counter(self) -> float:
        """Stands for that of `time`."""
        return self.now

    def on_step(self, session: Any, step: Any) -> None:
        self.now += self.step_s
        if stepper_of(session).team.membership.worker == 2 and step.number == self.after:
            os.kill(os.getpid(), signal.SIGKILL)


def job(falls: int, returns: int, step_s: float = 0.1, dies: int = 0, tried: str = "") -> cordee.Job:
    """The link has 1000 Mbit/s, and 20 after the step when it `falls`, until it `returns`.

    All workers write into the file `tried` among how many replicas, and stations, they have tried codecs.
    """

    def exchange(link: Link, tensor: torch.Tensor) -> Took | None:
        """As an exchange of such a tensor takes on that link; all replicas come to it."""
        team: Team = link._team
        mbit = 20 if falls <= team.steps < returns else 1000
        seconds = tensor.nbytes * (team.replicas - 1) / (mbit * MBIT)
        clock.now += seconds
        return Took(seconds, seconds) if team.sums.sum(torch.zeros(1)).wait() else None

    def costs_of(parameters: Any, codecs: Any, replicas: int, stations: int) -> Any:
        if tried:
            with Path(tried).open("a") as file:
                file.write(f"{replicas} {stations}\n")
        return measured(parameters, codecs, replicas, stations)

    adaptive.time = measuring.time = clock = Told(step_s, dies)  # type: ignore[assignment]
    measured, adaptive.costs_of = adaptive.costs_of, costs_of
    Link._exchange = exchange  # type: ignore[method-assign]
    Clock.compute_s = Clock.step_s = property(lambda self: step_s)  # type: ignore[assignment]
    return cordee.Job(
        model=lambda: nn.Sequential(nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 200), nn.Linear(200, 10)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=cordee.data.digits(),
        batch=16,
        epochs=2,
        callbacks=[clock],
    )
