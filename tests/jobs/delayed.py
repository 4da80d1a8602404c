"""A job with a delay at one place of one worker, which also writes down what its own clock says of every step."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cordee
from cordee.core.world import World
from cordee.feed.arrays import ArraySource
from cordee.train.callbacks import Callback
from cordee.train.job import Save, Stop
from cordee.train.session import stepper_of


class Slow(ArraySource):
    """Reading takes longer by `seconds`."""

    seconds = 0.0

    def gather(self, ids: Any, out: Any = None) -> Any:
        time.sleep(self.seconds)
        return super().gather(ids, out)


class Net(nn.Module):
    """With or without a layer that communicates in the middle of the forward pass, after `busy` seconds of work."""

    def __init__(self, batchnorm: bool, seconds: float, busy: float) -> None:
        super().__init__()
        self.seconds, self.busy = seconds, busy
        middle = [nn.BatchNorm1d(256)] if batchnorm else []
        self.body = nn.Sequential(nn.Linear(64, 256), *middle, nn.ReLU(), nn.Linear(256, 10))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(self.seconds)
            until = time.thread_time() + self.busy
            while time.thread_time() < until:
                pass
        out: Tensor = self.body(x)
        return out


class LateWork:
    """A collective whose end is noticed later."""

    ends_by_itself = True

    def __init__(self, work: Any, seconds: float) -> None:
        self._work, self._seconds = work, seconds

    def has_ended(self) -> bool:
        return bool(self._work.has_ended())

    def wait(self, broken: Any) -> None:
        time.sleep(self._seconds)
        self._work.wait(broken)


class LateSums:
    """A transport whose sums come in late."""

    def __init__(self, transport: Any, seconds: float) -> None:
        self._transport, self._seconds = transport, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def sum(self, tensor: Tensor) -> Any:
        work = self._transport.sum(tensor)
        return LateWork(work, self._seconds) if work is not None else None


class Clock(Callback):
    """Notes when each step was committed here; with `seconds` sums come in late, with `rests` it sleeps."""

    def __init__(self, seconds: float, rests: float) -> None:
        self._seconds, self._rests = seconds, rests
        self._at: list[float] = []

    def on_start(self, session: Any) -> None:
        if self._seconds:
            sums = stepper_of(session).team.sums
            self._transports, sums.transports = (
                sums.transports,
                tuple(LateSums(one, self._seconds) for one in sums.transports),
            )

    def on_step(self, session: Any, step: Any) -> None:
        self._at.append(time.perf_counter())
        time.sleep(self._rests)

    def on_end(self, session: Any) -> None:
        if self._seconds:
            stepper_of(session).team.sums.transports = self._transports
        Path(f"clock-{stepper_of(session).team.membership.worker}.json").write_text(json.dumps(self._at))


def job(
    where: str = "", worker: int = 1, seconds: float = 0.1, batchnorm: bool = False, steps: int = 10, busy: float = 0.0
) -> cordee.Job:
    """`where` the `worker` takes `seconds` longer; all compute for `busy` seconds."""
    mine = {where: seconds} if World.from_env().rank == worker else {}
    torch.manual_seed(0)
    source = Slow({"x": torch.randn(400, 64), "y": torch.randint(10, (400,))})
    source.seconds = mine.get("data", 0.0)
    return cordee.Job(
        model=lambda: Net(batchnorm, mine.get("compute", 0.0), busy),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data={"train": source},
        batch=30,
        epochs=None,
        stop=Stop(steps=steps),
        save=Save(epochs=None),
        callbacks=[Clock(mine.get("communication", 0.0), mine.get("callbacks", 0.0))],
        preflight=False,
    )
