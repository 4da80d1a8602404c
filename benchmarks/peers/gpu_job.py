"""Cordée's side of the comparison on a GPU: an ordinary job that waits for its turn between two steps."""

from __future__ import annotations

import torch
from gpu_tasks import TASKS
from pace import Pace

import cordee
from cordee.train.callbacks import Callback
from cordee.train.job import Save, Stop
from cordee.train.session import Session


class Turns(Callback):
    """Blocks between two steps while it is not our turn."""

    def __init__(self, path: str) -> None:
        """Connect at the start of the training."""
        self._path = path
        self._pace: Pace | None = None

    def on_start(self, session: Session) -> None:
        """Everything is ready for the first step."""
        self._pace = Pace(self._path, "cordee", session.rank, settle=torch.cuda.synchronize)

    def on_step(self, session: Session, step: object) -> None:
        """A step was committed."""
        assert self._pace is not None
        self._pace.step()

    def ended(self, step: object) -> bool:
        """Whether to stop."""
        return self._pace is None or self._pace.ended


def job(task: str, turns: str) -> cordee.Job:
    """The task of this name; `turns` is the socket on which we are told when to compute."""
    chosen = TASKS[task]
    callback = Turns(turns)
    return cordee.Job(
        model=chosen.model,
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
