"""A job on a CSV: numbers, categories, missing values; the cache is where the test says."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

import cordee


def cleaned(columns: Any) -> Any:
    kept = {name: values for name, values in columns.items() if name != "note"}
    return {**kept, "ratio": columns["a"] / columns["b"]}


def job(path: str = "", cache: str = "", epochs: int = 2) -> cordee.Job:
    os.environ["CORDEE_CACHE"] = cache
    rows = cordee.data.csv(path, label="kind").map(cleaned).fill("median").standardize().one_hot("place")
    return cordee.Job(
        model=lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double(),
        objective=lambda model, batch: _loss(model(batch.x.double()), batch.y),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.2),
        data=rows.split(0.7, 0.2, 0.1, seed=3),
        batch=50,
        epochs=epochs,
        metrics={"accuracy": cordee.metrics.accuracy},
    )


def _loss(output: Any, target: Any) -> Any:
    return nn.functional.cross_entropy(output, target), output
