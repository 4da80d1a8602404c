"""Cordée's side of the comparison on a GPU: an ordinary job that waits for its turn between two steps."""

from __future__ import annotations

import torch
from gpu_tasks import TASKS
from turns import Turns

import cordee
from cordee.train.job import Save, Stop
from cordee.train.session import Session


class GpuTurns(Turns):
    """Says at the end how much of the GPU's memory was used, as the loop by hand does."""

    def on_end(self, session: Session) -> None:
        """All steps are behind us; evaluation and files are not."""
        print(f"peak {torch.cuda.max_memory_allocated()} {torch.cuda.max_memory_reserved()}", flush=True)


def job(task: str, turns: str, side: str = "cordee") -> cordee.Job:
    """The task of this name; `turns` is the socket on which we are told when to compute."""
    chosen = TASKS[task]
    callback = GpuTurns(turns, side, settle=torch.cuda.synchronize)
    own, weigh = chosen.objective, chosen.weigh
    data = cordee.data.arrays(*chosen.data())
    if chosen.augment is not None:
        augment = torch.compile(chosen.augment)
        data = data.augment(lambda batch: {"x": augment(batch.x, cordee.data.draws(batch, 3)), "y": batch.y})
    return cordee.Job(
        model=chosen.model,
        loss=chosen.loss,
        objective=None if own is None else lambda model, batch: own(model, batch.x, batch.y),
        weigh=None if weigh is None else lambda batch: weigh(batch.y),
        optimizer=chosen.optimizer,
        data=data,
        batch=chosen.batch,
        drop_last=True,
        epochs=None,
        stop=Stop(when=callback.ended),
        save=Save(epochs=None),
        callbacks=[callback],
    )
