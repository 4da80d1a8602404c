"""A small MLP on digits, with a knob for most things that a job can ask for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop


class Mlp(nn.Module):
    """`idle` adds a layer without gradients: `all` everywhere, `some` where a share holds no bright sample."""

    def __init__(self, dtype: str, idle: str) -> None:
        super().__init__()
        self.dtype = getattr(torch, dtype)
        self.body = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10)).to(self.dtype)
        self.idle = idle
        self.extra = nn.Linear(64, 10, dtype=self.dtype) if idle else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.to(self.dtype))
        if self.extra is None or self.idle == "all":
            return out
        bright = x.mean(1) > 0.36  # few samples: many shares hold none of them
        if not bool(bright.any()):
            return out
        rows = bright.nonzero().squeeze(1)
        return out.index_add(0, rows, self.extra(x[rows].to(self.dtype)))


def job(
    dtype: str = "float64",
    optimizer: str = "adamw",
    schedule: bool = False,
    idle: str = "",
    samples: int = 1003,
    stop_steps: int | None = None,
    save_steps: int | None = None,
    save_seconds: float | None = None,
) -> cordee.Job:
    data = cordee.data.digits(validation=0.1, test=0.1)
    x, y = (data.train.gather(np.arange(samples))[name] for name in ("x", "y"))
    optimizers = {
        "adamw": lambda params: torch.optim.AdamW(params, lr=3e-3),
        "sgd": lambda params: torch.optim.SGD(params, lr=0.2),
        "momentum": lambda params: torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=1e-3),
    }
    return cordee.Job(
        model=lambda: Mlp(dtype, idle),
        loss=nn.functional.cross_entropy,
        optimizer=optimizers[optimizer],
        data={"train": (x, y), "validation": data.validation, "test": data.test},
        batch=101,
        metrics={"accuracy": cordee.metrics.accuracy},
        schedule=(lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.01, total_steps=64)) if schedule else None,
        stop=Stop(steps=stop_steps),
        save=Save(steps=save_steps, seconds=save_seconds),
    )
