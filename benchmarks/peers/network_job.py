"""Cordée's side of `network.py`: an ordinary job that waits for its turn between two steps."""

from __future__ import annotations

from peers.shakespeare import TASKS
from torch import nn
from turns import Turns

import cordee
from cordee.train.job import Save, Stop


def job(task: str, turns: str) -> cordee.Job:
    """The task of this name; `turns` is the socket on which we are told when to compute."""
    chosen = TASKS[task]
    models: list[nn.Module] = []

    def model() -> nn.Module:
        models.append(chosen.model())
        return models[-1]

    callback = Turns(turns, "cordee", keep=chosen.keeper_of(lambda: models[-1], turns))
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
