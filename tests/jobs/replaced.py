"""BatchNorm, AdamW and a schedule on digits, of whose workers some are lost, and wait for those that replace them.

With `plain`, SGD alone: then it does not matter how many workers compute a step.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cordee
from cordee.group.team import Team
from cordee.train import newcomers
from cordee.train.ledger import Committed
from cordee.train.session import stepper_of

DEADLINE_S = 120.0
LET_IN: list[int] = []
"""The size of the group each time that others had come in to it, as this worker saw it."""


def until(what: Callable[[], object]) -> None:
    """Wait for it; a worker that waits in vain fails."""
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Fate(cordee.Callback):
    """After the steps that `fates` name, workers end; after those of `waits`, all wait until another one has come."""

    def __init__(self, fates: str, waits: str, starts: Path, many: int) -> None:
        self._fates = [fate.split(":") for fate in fates.split()]
        self._waits = [int(step) for step in waits.split()]
        self._starts, self._many = starts, many

    def on_step(self, session: cordee.Session, done: Committed) -> None:
        team = stepper_of(session).team
        for worker, step, name in self._fates:
            if (team.membership.worker, done.steps) == (int(worker), int(step)):
                os.kill(os.getpid(), getattr(signal, name))
        if done.steps in self._waits:
            before = self._waits.index(done.steps)  # the one that is waited for here may have come early
            full = cordee.World.from_env().size
            until(lambda: team.channel.newcomers or team.membership.size == full or len(LET_IN) > before)
        if self._many and done.steps == 20:
            until(lambda: len(self._starts.read_text()) >= self._many)


def model(starts: Path, dying: str, plain: bool) -> nn.Module:
    """Counts the processes that come so far; those whose number is in `dying` go no further."""
    with starts.open("a") as file:
        file.write(".")
    if str(len(starts.read_text())) in dying.split():
        os.kill(os.getpid(), signal.SIGKILL)
    norm = nn.Identity() if plain else nn.BatchNorm1d(32)
    layers = [nn.Flatten(), nn.Linear(64, 32), norm, nn.Tanh(), nn.Linear(32, 10)]
    return nn.Sequential(*layers).double()


def die_while_coming_in(giver: int, newcomer: int) -> None:
    """The one dies when it is to give its state, the other as soon as it is let in."""
    share, enter = newcomers.share_snapshot, Team.enter

    def placed_share(team: Team, read: Callable[[], Any]) -> Any:
        def placed_read() -> Any:
            if team.membership.worker == giver:
                os.kill(os.getpid(), signal.SIGKILL)
            return read()

        LET_IN.append(team.membership.size)
        return share(team, placed_read)

    def placed_enter(team: Team) -> None:
        enter(team)
        if team.membership.worker == newcomer:
            os.kill(os.getpid(), signal.SIGKILL)

    newcomers.share_snapshot, Team.enter = placed_share, placed_enter  # type: ignore[assignment, method-assign]


def job(
    starts: str,
    fates: str = "",
    waits: str = "",
    dying: str = "",
    many: int = 0,
    giver: int = -1,
    newcomer: int = -1,
    plain: bool = False,
) -> cordee.Job:
    die_while_coming_in(giver, newcomer)
    data = cordee.data.digits(validation=0.1)
    return cordee.Job(
        model=lambda: model(Path(starts), dying, plain),
        objective=lambda one, batch: nn.functional.cross_entropy(one(batch.x.double()), batch.y),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.2) if plain else torch.optim.AdamW(params, lr=3e-3),
        schedule=None if plain else lambda one: torch.optim.lr_scheduler.OneCycleLR(one, 0.01, total_steps=96),
        data=data,
        batch=101,
        epochs=2,
        callbacks=[Fate(fates, waits, Path(starts), many)],
    )
