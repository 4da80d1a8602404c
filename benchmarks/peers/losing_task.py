"""What `recovery.py` trains on every system, and what each worker writes down of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

BATCH, SAMPLES = 96, 1344
"""14 batches per epoch, each of which three workers share alike."""
ROW_S = 0.45e-3
"""A pass over a row takes so long, as on a device that computes: 14 ms for a third of a batch."""


class Model(nn.Module):
    """An MLP on digits, in float64."""

    def __init__(self) -> None:
        """As of a seed."""
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).double()

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the ten digits."""
        if self.training and not torch.compiler.is_compiling():
            time.sleep(ROW_S * len(x))
        out: Tensor = self.body(x.double())
        return out


def optimizer(params: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """That of all systems."""
    return torch.optim.AdamW(params, lr=1e-3)


def digits() -> tuple[Tensor, Tensor]:
    """As many as make whole batches."""
    import cordee

    train = cordee.data.digits().train
    found = train.gather(torch.arange(SAMPLES).numpy())
    return found["x"], found["y"]


class Log:
    """A file of this process: when it committed which step, and which samples of it were its own."""

    def __init__(self, folder: str, rank: int) -> None:
        """Say which process this is."""
        self._file = open(Path(folder, f"{os.getpid()}.log"), "a", buffering=1)  # noqa: SIM115 - as long as we live
        self._file.write(f"{rank} {os.getpid()} {time.time():.6f}\n")

    def committed(self, step: int, samples: int, ids: Tensor | None = None) -> None:
        """A step was committed, with so many samples of all workers; `ids`: those of this one, if it knows."""
        own = "" if ids is None else ",".join(map(str, ids.tolist()))
        self._file.write(f"{time.time():.6f} {step} {samples} {own}\n")
