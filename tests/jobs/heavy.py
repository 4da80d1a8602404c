"""A model whose state is written while the next step is computed: larger than what is copied at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import cordee
from cordee.state import staging
from cordee.train import saving
from cordee.train.job import Save, Stop


def job(width: int = 300, steps: int = 60, save_steps: int = 1) -> cordee.Job:
    saving.COPIED_BYTES = 0  # every state counts as large
    assert staging.available_memory() > 2**30, "it would be written without a copy"
    data = cordee.data.digits(validation=0.1, test=0.1).train
    x, y = (data.gather(np.arange(len(data)))[name] for name in ("x", "y"))
    layers = [part for _ in range(3) for part in (nn.Linear(width, width), nn.Tanh())]
    return cordee.Job(
        model=lambda: nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 10)).double(),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        data=(x.double(), y),
        batch=101,
        epochs=None,
        stop=Stop(steps=steps),
        save=Save(steps=save_steps, keep_last=2),
        preflight=False,
    )
