"""Digits with a metric that gets worse from epoch to epoch, so that the best checkpoint is an early one."""

from __future__ import annotations

import mlp
from torch import Tensor

import cordee
from cordee.train.job import Save, Stop


def size(output: Tensor, target: Tensor) -> Tensor:
    """The mean size of a sample's output, which training makes grow."""
    return output.abs().mean(1)


def job(
    keep_best: str | None = "-size",
    keep_last: int = 1,
    save_steps: int | None = None,
    stop_steps: int | None = None,
) -> cordee.Job:
    return mlp.job().replace(
        metrics={"size": size, "accuracy": cordee.metrics.accuracy},
        epochs=3,
        stop=Stop(steps=stop_steps),
        save=Save(steps=save_steps, keep_last=keep_last, keep_best=keep_best),
    )
