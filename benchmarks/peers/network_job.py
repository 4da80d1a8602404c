"""Cordée's side of `network.py`: an ordinary job that waits for its turn between two steps."""

from __future__ import annotations

import time

from peers.shakespeare import TASKS
from torch import nn
from turns import Turns

import cordee
from cordee.train.job import Save, Stop
from cordee.train.session import Session, stepper_of


class Pauses(Turns):
    """Counts its pauses as time of waiting: `sync=auto` takes all other time for computing, and would believe them."""

    def on_step(self, session: Session, step: object) -> None:
        """A step was committed."""
        began = time.perf_counter()
        super().on_step(session, step)
        stepper_of(session).team.meter.blocked_s += time.perf_counter() - began


def job(task: str, turns: str) -> cordee.Job:
    """The task of this name; `turns` is the socket on which we are told when to compute."""
    chosen = TASKS[task]
    models: list[nn.Module] = []

    def model() -> nn.Module:
        models.append(chosen.model())
        return models[-1]

    callback = Pauses(turns, "cordee", measure=chosen.measure_of(lambda: models[-1]))
    return cordee.Job(
        model=model,
        loss=chosen.loss,
        optimizer=chosen.optimizer,
        data=cordee.data.arrays(*chosen.data()),
        batch=chosen.batch,
        drop_last=True,
        epochs=None,
        stop=Stop(when=callback.ended),
        save=Save(epochs=None),
        callbacks=[callback],
    )
