"""A job on an endless stream that draws its samples; `fate` ends workers as in `steady`, `ends` ends the stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlp import Mlp
from steady import Fate
from torch import Tensor, nn

import cordee
from cordee.train.callbacks import Callback
from cordee.train.job import Stop

DIGITS = cordee.data.digits(validation=0.0, test=0.0).train


class Reads(Callback):
    """Writes down how many samples this worker has made."""

    def __init__(self, folder: str) -> None:
        self.folder, self.made = folder, 0

    def on_end(self, session: Any) -> None:
        if self.folder:
            (Path(self.folder) / str(session.rank)).write_text(str(self.made))


def job(
    fate: str = "",
    starts: bool = False,
    ends: int = 0,
    drawn: str = "own",
    wild: bool = False,
    reads: str = "",
    stop_steps: int | None = None,
) -> cordee.Job:
    count = Reads(reads)

    def samples(start: int) -> Iterator[tuple[Tensor, int]]:
        number, mine = start, np.random.default_rng(None if wild else 5)
        while not ends or number < ends:
            if drawn == "own":
                place, noise = int(np.random.default_rng(number).integers(1797)), np.zeros(64)
            elif drawn == "global":
                place, noise = random.randrange(1797), np.random.normal(size=64)
            else:
                place, noise = int(torch.randint(1797, (1,))), torch.randn(64).double().numpy()
            if wild:
                place = int(mine.integers(1797))
            found = DIGITS.gather(np.array([place]))
            count.made += 1
            yield found["x"][0] + torch.from_numpy(0.1 * noise).float(), int(found["y"][0])
            number += 1

    factory = (lambda start=0: samples(start)) if starts else (lambda: samples(0))
    told = Fate(fate, -1, "")

    class Watched(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                told.meet("forward")
            out: Tensor = super().forward(x)
            return out

    return cordee.Job(
        model=lambda: Watched("float64", ""),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=cordee.data.stream(factory),
        batch=50,
        epochs=2,
        steps_per_epoch=8,
        shuffle="none",
        callbacks=[told, count],
        stop=Stop(steps=stop_steps),
    )
