"""Cordée's side of a comparison: an ordinary job, with a callback that waits for its turn between two steps."""

from __future__ import annotations

from tasks import TASKS
from tensor_tasks import TASKS as TENSOR_TASKS
from turns import Turns

import cordee
from cordee.train.job import Save, Stop


def job(task: str, turns: str, side: str = "cordee", stages: str = "") -> cordee.Job:
    """The task of this name; `turns` is the socket on which we are told when to compute."""
    chosen = {**TASKS, **{f"tensor-{name}": one for name, one in TENSOR_TASKS.items()}}[task]
    callback = Turns(turns, side)
    return cordee.Job(
        model=chosen.model,
        loss=chosen.loss,
        optimizer=chosen.optimizer,
        data=cordee.data.arrays(*chosen.data()),
        batch=chosen.batch,
        drop_last=True,
        **({"stages": stages.split("+")} if stages else {}),  # former versions have none
        epochs=None,
        stop=Stop(when=callback.ended),
        save=Save(epochs=None),
        callbacks=[callback],
    )
