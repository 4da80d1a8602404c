"""A job with several pieces per parameter server, one worker of which dies in the middle of a message to a server.

`dies` is such as `1:push:14`: worker 1 sends half of the bytes of its 14th push, and ends. A step has four pushes.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import cordee
from cordee.group.bulk import Link, bytes_of
from cordee.group.wire import pack


class Double(nn.Sequential):
    """In float64, so that results can be compared closely."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x.double())
        return out


def die_within(kind: str, number: int) -> None:
    """From now on, let this process end within the message of this kind with this number."""
    whole, count = Link.send, itertools.count(1)

    def send(self: Link, message: Any, tensors: Sequence[Tensor] = ()) -> None:
        if type(message).__name__.lower() == kind and next(count) == number:
            raw = b"".join([pack(message), *bytes_of(tensors)])
            self._sock.sendall(raw[: len(raw) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        whole(self, message, tensors)

    Link.send = send  # type: ignore[method-assign]


def job(dies: str = "") -> cordee.Job:
    worker, kind, number = (dies or "-1::0").split(":")
    if int(worker) == cordee.World.from_env().rank:
        die_within(kind, int(number))
    widths = [64, 512, 512, 512, 10]

    def model() -> nn.Module:
        pairs = itertools.pairwise(widths)
        return Double(*(part for sizes in pairs for part in (nn.Linear(*sizes), nn.Tanh()))).double()

    return cordee.Job(
        model=model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        data=cordee.data.digits(),
        batch=101,
        epochs=1,
        preflight=False,
    )
