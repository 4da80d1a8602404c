"""The MLP on digits, of whose workers one is slow, and one is lost in the middle of a window or at its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import mlp

import cordee
from cordee.group.channel import Channel
from cordee.group.team import Team
from cordee.sync.local import LocalSteps
from cordee.sync.server.pushed import PushedSteps
from cordee.train.session import stepper_of
from cordee.train.windows import Windows


class Uneven(cordee.Callback):
    """Finds out which worker this is, when the training begins."""

    def __init__(self, arrange: Callable[[Team], None]) -> None:
        self.arrange = arrange

    def on_start(self, session: Any) -> None:
        self.arrange(stepper_of(session).team)


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def parts(slow_ms: float, dies_after: int) -> None:
    """Parts take longer by so much, or this worker is killed when it has computed so many, and one that it holds."""
    done, calls = Windows.done, 0

    def placed(self: Windows, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        time.sleep(slow_ms / 1e3)
        if dies_after and calls > dies_after:
            end()
        return done(self, *args)

    Windows.done = placed  # type: ignore[method-assign]


def dies_at_merge(kind: type[LocalSteps], number: int, *, after: bool) -> None:
    """This worker is killed before or after a merge."""
    barrier, calls = kind.barrier, 0

    def placed(self: LocalSteps) -> bool:
        nonlocal calls
        calls += 1
        agreed = barrier(self) if calls != number or after else False
        if calls == number:
            end()
        return agreed

    kind.barrier = placed  # type: ignore[method-assign]


def misses_merge(kind: type[LocalSteps], number: int, team: Team, lost: int) -> None:
    """To this worker a merge looks incomplete, though the others have it, until it knows that one of them is lost."""
    barrier, settle, calls = kind.barrier, Team.settle, 0

    def held_up(self: Team, handles: Any, result: Any, **more: Any) -> bool:
        Team.settle = settle  # type: ignore[method-assign]
        for handle in handles:
            handle.wait()
        assert isinstance(team.channel, Channel)
        assert team.channel.wait(lambda: lost in team.channel.lost, 60.0)
        return settle(self, handles, result, void=True)

    def placed(self: LocalSteps) -> bool:
        nonlocal calls
        calls += 1
        if calls == number:
            Team.settle = held_up  # type: ignore[method-assign]
        return barrier(self)

    kind.barrier = placed  # type: ignore[method-assign]


def job(
    optimizer: str = "momentum",
    schedule: bool = False,
    save_steps: int | None = None,
    slow: int = -1,
    dies: int = -1,
    where: str = "part:3",
    behind: int = -1,
) -> cordee.Job:
    """`dies` is lost after so many parts, `part:3`, before a merge, `merge:2`, or after it, `merged:2`.

    Then `behind` is a worker that has not got the result of that merge.
    """
    what, number = where.split(":")

    def arrange(team: Team) -> None:
        worker = team.membership.worker
        if worker == slow:
            parts(30.0, 0)
        if worker == dies and what == "part":
            parts(0.0, int(number))
        for kind in (LocalSteps, PushedSteps):
            if worker == dies and what != "part":
                dies_at_merge(kind, int(number), after=what == "merged")
            if worker == behind:
                misses_merge(kind, int(number), team, dies)

    base = mlp.job(optimizer=optimizer, schedule=schedule, save_steps=save_steps)
    return base.replace(callbacks=[Uneven(arrange)], epochs=2)
