"""Digits with a metric that gets worse from epoch to epoch, so that the best checkpoint is an early one."""

from __future__ import annotations

import time

import instants
import mlp
from torch import Tensor

import cordee
from cordee.group.team import Team
from cordee.train.job import Save, Stop


def size(output: Tensor, target: Tensor) -> Tensor:
    """The mean size of a sample's output, which training makes grow."""
    return output.abs().mean(1)


def job(
    keep_best: str | None = "-size",
    keep_last: int = 1,
    save_steps: int | None = None,
    stop_steps: int | None = None,
    stop_metric: str | None = None,
    delay: float = 0.0,
    acts: str = "",
    words: str = "",
) -> cordee.Job:
    instants.place(Team, words, acts)
    return mlp.job().replace(
        metrics={"size": size, "accuracy": cordee.metrics.accuracy},
        epochs=3,
        stop=Stop(steps=stop_steps, metric=stop_metric, patience=1, when=lambda step: time.sleep(delay)),
        save=Save(
            steps=save_steps, epochs=1 if stop_metric is None else None, keep_last=keep_last, keep_best=keep_best
        ),
    )
