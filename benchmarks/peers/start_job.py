"""Cordée's side: the same model, data and optimizer as an ordinary job."""

from __future__ import annotations

import json

import torch
from start_tasks import BATCH, MAKING, task_of

import cordee
from cordee.train.callbacks import Callback
from cordee.train.session import Session


class Told(Callback):
    """Says when the model was made, and how much of a GPU's memory was used."""

    def on_end(self, session: Session) -> None:
        """All steps are behind us; the files are not."""
        gpu = torch.cuda.max_memory_allocated() if session.device != "cpu" else 0
        print(json.dumps({"making": MAKING, "gpu_bytes": gpu}), flush=True)


def job(millions: float = 1.0, device: str = "cpu") -> cordee.Job:
    """A few steps of a model with so many million parameters."""
    task = task_of(millions, device)
    return cordee.Job(
        model=task.model,
        loss=task.loss,
        optimizer=task.optimizer,
        data=cordee.data.arrays(*task.data()),
        batch=BATCH,
        epochs=1,
        callbacks=[Told()],
    )
