"""BatchNorm, AdamW and a schedule on digits, in fp64; after the steps of `gates` all workers wait for a file.

The test changes the workers of the run from outside meanwhile. A gate is `step:file`. A worker that comes to it makes
`file.here`, and waits until the file is there, and until it knows of the change if the file does not say `go`. If the
file holds a number, the workers go on from one change to the next until there are so many of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import cordee
from cordee.train.ledger import Committed
from cordee.train.session import stepper_of

DEADLINE_S = 120.0


def until(what: Callable[[], object]) -> None:
    """Wait for it; a worker that waits in vain fails."""
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Gates(cordee.Callback):
    """Waits at each gate until its file is there."""

    def __init__(self, gates: str, pids: str) -> None:
        self._gates = {int(step): Path(file) for step, file in (one.split(":") for one in gates.split())}
        self._pids = Path(pids) if pids else None
        self._wanted = "go"

    def on_start(self, session: cordee.Session) -> None:
        if self._pids is not None:
            (self._pids / str(stepper_of(session).team.membership.worker)).write_text(str(os.getpid()))

    def on_step(self, session: cordee.Session, done: Committed) -> None:
        team, gate = stepper_of(session).team, self._gates.get(done.steps)
        if gate is not None:
            gate.with_name(f"{gate.name}.here").touch()
            until(gate.exists)
            self._wanted = gate.read_text()
        if self._wanted not in ("go", str(team.membership.size)):
            until(lambda: team.channel.newcomers)
            self._wanted = self._wanted or "go"
        else:
            self._wanted = "go"


def job(gates: str = "", pids: str = "", save_steps: int | None = None, epochs: int = 2) -> cordee.Job:
    def model() -> nn.Module:
        layers = [nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 10)]
        return nn.Sequential(*layers).double()

    return cordee.Job(
        model=model,
        objective=lambda one, batch: nn.functional.cross_entropy(one(batch.x.double()), batch.y),
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        schedule=lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.01, total_steps=96),
        data=cordee.data.digits(validation=0.1),
        batch=101,
        epochs=epochs,
        callbacks=[Gates(gates, pids)],
        save=cordee.Save(steps=save_steps),
    )
