"""Cordée's side of `recovery.py`: an ordinary job whose workers write down when they committed which step."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from torch import nn

sys.path.append(os.path.dirname(os.path.abspath(__file__)))
from losing_task import BATCH, Log, Model, digits, optimizer

import cordee
from cordee.train.job import Save, Stop


class Written(cordee.Callback):
    """Writes down every step that was committed."""

    def __init__(self, folder: str) -> None:
        """`folder` is where the files of all processes are."""
        self._folder = folder
        self._log: Log | None = None

    def on_step(self, session: Any, step: Any) -> None:
        """After a step."""
        self._log = self._log or Log(self._folder, cordee.World.from_env().rank)
        self._log.committed(step.number + 1, BATCH)


def job(folder: str, steps: int = 0) -> cordee.Job:
    """Until a file says so, or so many steps."""
    return cordee.Job(
        model=Model,
        loss=nn.functional.cross_entropy,
        optimizer=optimizer,
        data=cordee.data.arrays(*digits()),
        batch=BATCH,
        epochs=None,
        stop=Stop(steps=steps or None, when=lambda step: Path(folder, "stop").exists()),
        save=Save(epochs=None, steps=50),
        callbacks=[Written(folder)],
        preflight=False,
    )
