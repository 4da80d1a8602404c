"""The digits with every way to stop, and a callback that writes down what it sees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlp
import torch
from torch import nn

import cordee
from cordee.train.callbacks import Callback
from cordee.train.job import Stop


class Notes(Callback):
    """Writes the calls of one worker to a file of its own."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.calls: list[Any] = []

    def on_start(self, session: Any) -> None:
        self.calls.append(["start"])

    def on_step(self, session: Any, step: Any) -> None:
        self.calls.append(["step", step.number, step.epoch, step.loss, step.samples])

    def on_epoch(self, session: Any, epoch: int) -> None:
        self.calls.append(["epoch", epoch])

    def on_evaluation(self, session: Any, part: str, metrics: Mapping[str, float]) -> None:
        self.calls.append(["evaluation", part, dict(metrics)])

    def on_end(self, session: Any) -> None:
        self.calls.append(["end"])
        (self.folder / f"{session.rank}.json").write_text(json.dumps(self.calls))


def job(
    lr: float = 3e-3,
    stop_steps: int | None = None,
    minutes: float | None = None,
    loss_below: float | None = None,
    patience: int | None = None,
    notes: str = "",
) -> cordee.Job:
    stop = Stop(
        steps=stop_steps,
        minutes=minutes,
        when=None if loss_below is None else lambda done: done.loss < loss_below,
        metric=None if patience is None else "loss",
        patience=patience or 3,
        least_gain=0.02,
    )
    long = loss_below is not None or patience is not None
    return mlp.job().replace(
        optimizer=lambda params: torch.optim.SGD(params, lr=100 * lr if long else lr, momentum=0.5),
        epochs=20 if long else 1,
        stop=stop,
        callbacks=[Notes(notes)] if notes else (),
        loss=nn.functional.cross_entropy,
    )
