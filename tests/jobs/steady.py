"""A job whose workers can be made to die at a chosen place of the training, and that leaves their numbers in a folder.

`fate` is a list such as `1:forward:7, 2:update:9:SIGSTOP`: which worker, where, after how many steps, by what signal.
With `awaits`, all workers wait after step `awaits_at` until there is such a file: until they were struck from outside.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cordee
from cordee.train.callbacks import Callback
from cordee.train.job import Save


class Fate(Callback):
    """Knows how far the training is, and ends this process where it was told to."""

    def __init__(self, text: str, raises: int, awaits: str, awaits_at: int = 25) -> None:
        me = cordee.World.from_env().rank
        self.raises = raises if me == 1 else -1
        self.awaits, self.awaits_at = Path(awaits) if awaits else None, awaits_at
        self.step = 0
        self.judged = -1
        self.doom: dict[tuple[str, int], str] = {}
        for one in filter(None, text.replace(" ", "").split(",")):
            worker, place, step, *number = one.split(":")
            if int(worker) == me:
                self.doom[place, int(step)] = number[0] if number else "SIGKILL"

    def meet(self, place: str) -> None:
        name = self.doom.pop((place, self.step), None)
        if name is not None:
            os.kill(os.getpid(), signal.Signals[name])

    def on_step(self, session: Any, step: Any) -> None:
        self.step = step.number + 1
        if self.step == self.raises:
            raise RuntimeError("it fails, as it was told to")
        self.meet("after")
        deadline = time.monotonic() + 120.0
        while self.awaits is not None and self.step >= self.awaits_at and not self.awaits.exists():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def on_evaluation(self, session: Any, part: str, metrics: Mapping[str, float]) -> None:
        self.judged = self.step

    def on_end(self, session: Any) -> None:
        self.meet("end")


class Model(nn.Module):
    def __init__(self, fate: Fate, delay: float, batchnorm: bool, drop: float) -> None:
        super().__init__()
        fate.meet("start")
        self.fate, self.delay = fate, delay
        norm = nn.BatchNorm1d(48) if batchnorm else nn.Dropout(drop)
        self.body = nn.Sequential(nn.Linear(64, 48, bias=False), norm, nn.ReLU(), nn.Linear(48, 10)).double()

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            out: Tensor = self.body(x.double())
            return out
        if not self.training:
            self.fate.meet("test" if self.fate.judged == self.fate.step else "validation")
        else:
            self.fate.meet("forward")
            time.sleep(self.delay)
        out = self.body(x.double())
        if out.requires_grad:
            out.register_hook(lambda gradient: self.fate.meet("backward"))
        return out


def job(  # noqa: PLR0913 (what tests ask of it)
    fate: str = "",
    delay: float = 0.005,
    pids: str = "",
    save_steps: int | None = None,
    batchnorm: bool = True,
    weighed: bool = False,
    raises: int = -1,
    awaits: str = "",
    awaits_at: int = 25,
    drop: float = 0.0,
) -> cordee.Job:
    told = Fate(fate, raises, awaits, awaits_at)
    if pids:
        (Path(pids) / str(cordee.World.from_env().rank)).write_text(str(os.getpid()))

    def optimizer(params: Any) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(params, lr=3e-3)
        made.register_step_pre_hook(lambda *_: told.meet("update"))
        return made

    return cordee.Job(
        model=lambda: Model(told, delay, batchnorm, drop),
        loss=nn.functional.cross_entropy,
        optimizer=optimizer,
        data=cordee.data.digits(),
        batch=101,
        epochs=2,
        metrics={"accuracy": cordee.metrics.accuracy},
        callbacks=[told],
        weigh=(lambda batch: 2.5 * len(batch)) if weighed else None,
        save=Save(steps=save_steps),
        preflight=False,
    )
