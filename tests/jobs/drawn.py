"""A job as people have it: data split, shuffled and augmented by Python's and NumPy's one generator, without a seed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from mlp import Mlp
from torch import Tensor, nn
from torch.utils.data import Dataset

import cordee
from cordee.train.job import Stop


class Augmented(Dataset[Any]):
    """Rows in an order of its own, some of them changed each time."""

    def __init__(self, x: Tensor, y: Tensor, own: str) -> None:
        self.rows = list(zip(x, y.tolist(), strict=True))
        random.shuffle(self.rows)
        words = list({f"class {label}" for label in range(10)})  # Python gives them another order in another process
        self.number = {int(word.split()[1]): place for place, word in enumerate(words)}
        self.generator = np.random.default_rng(0) if own else None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        x, y = self.rows[place]
        if self.generator is not None:
            return x + float(self.generator.normal()), y
        if y % 2:  # some classes only, as people do with the rare ones
            x = x.flip(0) if random.random() < 0.5 else x
            x = x + 0.2 * torch.from_numpy(np.random.randn(64)).float()
        return x, self.number[y]


def job(own: str = "", stop_steps: int | None = None) -> cordee.Job:
    found = cordee.data.digits(validation=0.0, test=0.0).train.gather(np.arange(600))
    chosen = np.random.permutation(600)
    train, validation = (Augmented(found["x"][ids], found["y"][ids], own) for ids in (chosen[:500], chosen[500:]))
    return cordee.Job(
        model=lambda: Mlp("float64", ""),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=cordee.data.dataset(train, validation),
        batch=50,
        epochs=2,
        stop=Stop(steps=stop_steps),
        metrics={"accuracy": cordee.metrics.accuracy},
    )
