"""A dataset that draws noise from torch's generator, and, like a file handle, is not for two threads at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import torch
from mlp import Mlp
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

import cordee
from cordee.train.callbacks import Callback
from cordee.train.session import stepper_of


class Noisy(Dataset[Any]):
    """Digits with noise; reading takes so long that it is done ahead, in a thread."""

    def __init__(self) -> None:
        found = cordee.data.digits(validation=0.0, test=0.0).train.gather(np.arange(600))
        self.x, self.y = found["x"], found["y"]
        self.reader: int | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        me = threading.get_ident()
        if self.reader not in (None, me):
            raise RuntimeError("two threads read at once")
        self.reader = me
        time.sleep(0.0005)
        self.reader = None
        return self.x[place] + 0.2 * torch.randn(64), int(self.y[place])


class Dies(Callback):
    """Ends one worker while the others read ahead."""

    def __init__(self, worker: int) -> None:
        self.worker = worker

    def on_step(self, session: Any, step: Any) -> None:
        if stepper_of(session).team.membership.worker == self.worker and step.number == 9:
            os.kill(os.getpid(), signal.SIGKILL)


def job(dies: int = -1) -> cordee.Job:
    whole = Noisy()
    return cordee.Job(
        model=lambda: Mlp("float64", ""),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=cordee.data.dataset(Subset(whole, range(500)), Subset(whole, range(500, 600))),
        batch=50,
        epochs=2,
        metrics={"accuracy": cordee.metrics.accuracy},
        callbacks=[Dies(dies)],
    )
