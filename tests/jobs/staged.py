"""Models in stages, with a knob for what a job can ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop
from cordee.train.session import stepper_of


class Cnn(nn.Module):
    """`norm`: over groups of channels, or over the batch."""

    def __init__(self, norm: str) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            norms = nn.GroupNorm(2, after) if norm == "group" else nn.BatchNorm2d(after)
            return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), norms, nn.ReLU())

        self.stem, self.blocks = block(1, 6), nn.ModuleList([block(6, 6), block(6, 8)])
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.view(-1, 1, 8, 8))
        for one in self.blocks:
            x = one(x)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def lenet() -> nn.Module:
    """Convolutions with pooling, then two linear layers with a ReLU between them."""
    convolutions = [
        layer
        for before, after in ((1, 6), (6, 8))
        for layer in (nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    ]
    head = (nn.Flatten(), nn.Linear(8 * 2 * 2, 24), nn.ReLU(), nn.Linear(24, 10))
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convolutions, *head)


def model(kind: str) -> nn.Module:
    if kind == "lenet":
        return lenet()
    if kind in ("group", "batch"):
        return Cnn(kind)
    if kind == "deep":
        inner = [layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.Tanh())]
        return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), *inner, nn.Linear(32, 10))
    drop = nn.Dropout(0.1 if kind == "drops" else 0.0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 24), drop, nn.Tanh(), nn.Linear(24, 10))


def job(
    kind: str = "mlp",
    samples: int = 407,
    size: int = 37,
    light: bool = False,
    stop_steps: int | None = None,
    keep_best: bool = False,
    save_steps: int | None = None,
    predicts: str = "",
) -> cordee.Job:
    """`light`: samples of some classes weigh nothing."""
    data = cordee.data.digits(validation=0.1, test=0.1)
    x, y = (data.train.gather(np.arange(samples))[name] for name in ("x", "y"))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(out, y, reduction="none")
        return each[y < 4].mean() if light else each.mean()

    return cordee.Job(
        model=lambda: model(kind).double(),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data={"train": (x.double(), y), "validation": (x[:50].double(), y[:50])},
        batch=size,
        epochs=2,
        clip=0.5,
        weigh=(lambda batch: float((batch.y < 4).sum())) if light else None,
        metrics={"accuracy": cordee.metrics.accuracy},
        schedule=lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 64),
        callbacks=[Predicts(predicts)] if predicts else [],
        stop=Stop(steps=stop_steps),
        save=Save(steps=save_steps, keep_best="accuracy" if keep_best else None),
    )


class Predicts(cordee.Callback):
    """Writes down what the trained model gives for some samples; into no file: by code that calls it itself."""

    def __init__(self, file: str) -> None:
        self.file = file

    def on_end(self, session: Any) -> None:
        (model,) = stepper_of(session).models
        x = torch.linspace(-1, 1, 64 * 7).double().view(7, 64)
        if self.file == "itself":
            model(x)
        np.save(f"{self.file}-{session.rank}.npy", cordee.predict(model, x, session, batch=4).numpy())
