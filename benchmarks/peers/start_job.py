"""Cordée's side: the same model, data and optimizer as an ordinary job."""

from __future__ import annotations

import json

import torch
from start_tasks import BATCH, MAKING, make_data, make_model, make_optimizer

import cordee
from cordee.train.callbacks import Callback
from cordee.train.session import Session


class Told(Callback):
    """Says when the model was made, and how much of a GPU's memory was used."""

    def on_end(self, session: Session) -> None:
        """All steps are behind us; the files are not."""
        gpu = torch.cuda.max_memory_allocated() if session.device != "cpu" else 0
        print(json.dumps({"making": MAKING, "gpu_bytes": gpu}), flush=True)


def job(millions: float = 1.0) -> cordee.Job:
    """A few steps of a model with so many million parameters."""
    return cordee.Job(
        model=lambda: make_model(millions),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: make_optimizer(millions, parameters),
        data=cordee.data.arrays(*make_data(millions)),
        batch=BATCH,
        epochs=1,
        callbacks=[Told()],
    )
