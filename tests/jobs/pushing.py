"""A job with several pieces per parameter server, one worker of which dies in the middle of a message to a server.

`dies` is such as `1:push:14`: worker 1 sends half of the bytes of its 14th push, and ends. A step has five pushes.
`kills` is such as `1:close:3`: when worker 1 has sent its third message of that kind, the processes end whose numbers
are in the folder `pids`. With `behind=7` no other worker than `dies` gets the result of the seventh sum.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cordee
from cordee.group.bulk import Link, bytes_of
from cordee.group.channel import Channel
from cordee.group.team import Team
from cordee.group.wire import pack
from cordee.sync.server.served import Served


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


def kill_after(kind: str, number: int, pids: Path) -> None:
    """From now on, once this process has sent the message of this kind with this number, end the others."""
    whole, count = Link.send, itertools.count(1)

    def send(self: Link, message: Any, tensors: Sequence[Tensor] = ()) -> None:
        whole(self, message, tensors)
        if type(message).__name__.lower() == kind and next(count) == number:
            time.sleep(0.001 * (number % 3))  # it has come, or comes, or not
            for file in pids.iterdir():
                os.kill(int(file.read_text()), signal.SIGKILL)

    Link.send = send  # type: ignore[method-assign]


def miss(number: int, lost: int) -> None:
    """To this worker the sum that commits a push looks incomplete, until it knows that the other one is lost."""
    commit, settle, count = Served.commit, Team.settle, itertools.count(1)

    def held_up(self: Team, handles: Any, result: Any, **more: Any) -> bool:
        Team.settle = settle  # type: ignore[method-assign]
        for handle in handles:
            handle.wait()
        channel = self.channel
        assert isinstance(channel, Channel)
        assert channel.wait(lambda: lost in channel.lost, 60.0)
        return settle(self, handles, [torch.zeros_like(one) for one in result], void=True)

    def placed(self: Served, *args: Any, **more: Any) -> Any:
        if next(count) == number:
            Team.settle = held_up  # type: ignore[method-assign]
        return commit(self, *args, **more)

    Served.commit = placed  # type: ignore[method-assign]


def job(dies: str = "", behind: int = 0, kills: str = "", pids: str = "") -> cordee.Job:
    me = cordee.World.from_env().rank
    worker, kind, number = (dies or "-1::0").split(":")
    if int(worker) == me:
        die_within(kind, int(number))
    elif behind:
        miss(behind, int(worker))
    killer, what, which = (kills or "-1::0").split(":")
    if int(killer) == me:
        kill_after(what, int(which), Path(pids))
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
