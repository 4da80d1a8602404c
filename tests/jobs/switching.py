"""The MLP on digits under sync=auto, whose decisions come every two steps and are given: `choices`, in this order."""

from __future__ import annotations

from typing import Any

import mlp

import cordee
from cordee.sync import adaptive
from cordee.sync.adaptive import Decision


def job(choices: str = "int8 topk none bf16", optimizer: str = "momentum", stop_steps: int | None = None) -> cordee.Job:
    coming = iter(choices.split())

    def decide(*args: Any) -> Decision:
        return Decision(next(coming, "none"), {}, "as it was told")

    adaptive.decide = decide
    adaptive.FIRST, adaptive.EVERY = 1, 2
    return mlp.job(optimizer=optimizer, stop_steps=stop_steps)
