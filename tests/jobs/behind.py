"""The MLP on digits, for merges that are left behind: its workers die or stop at exact places, or when they are struck.

Nothing is measured or saved before the end, unless asked for: then a merge may be left behind at the end of an epoch
too. `acts`: see `instants.py`, whose places are joined by

    part-N     the N-th part of this worker is computed, and not said to be done
    asked-N    it has asked for a part for the N-th time
    send-N     before what a window came to is sent for the N-th time
    sent-N     after it
    begun-N    the N-th window is open, and its first part asked for

With `awaits`, all workers wait at step 16 for such a file.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import instants
import mlp
from torch import Tensor, nn

import cordee
from cordee.group.team import Team
from cordee.sync.local import LocalSteps
from cordee.train.job import Save
from cordee.train.stepper import Stepper
from cordee.train.windows import Windows


class Normed(mlp.Mlp):
    """With BatchNorm, whose buffers change with every part."""

    def __init__(self) -> None:
        super().__init__("float64", "")
        self.body = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.Tanh(), nn.Linear(48, 10)).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.double())
        return out


def place(folder: str, acts: str) -> None:
    """Let workers come to the places of windows, and act there."""
    at = instants.Places(folder, acts)
    done, ask, begin, open_window = Windows.done, Windows._ask, LocalSteps.begin_merge, Windows._begin

    def placed_done(windows: Windows, *args: Any) -> Any:
        at.come(windows.team.membership, f"part-{at.count('part')}")
        return done(windows, *args)

    def placed_ask(windows: Windows, message: Any) -> None:
        ask(windows, message)
        at.come(windows.team.membership, f"asked-{at.count('asked')}")

    def placed_begin(sync: LocalSteps) -> None:
        number = at.count("send")
        at.come(sync._team.membership, f"send-{number}")
        begin(sync)
        at.come(sync._team.membership, f"sent-{number}")

    def placed_open(windows: Windows, loop: Any, first: int) -> None:
        open_window(windows, loop, first)
        at.come(windows.team.membership, f"begun-{at.count('begun')}")

    Windows.done, Windows._ask, Windows._begin = placed_done, placed_ask, placed_open  # type: ignore[method-assign]
    LocalSteps.begin_merge = placed_begin  # type: ignore[method-assign]


AWAITS = 16


def slow_down(delay_s: float, awaits: Path | None) -> None:
    """Parts take longer; at one of a late step all workers wait for a file."""
    begin = Stepper._begin_step

    def placed(stepper: Stepper, loop: Any) -> None:
        begin(stepper, loop)
        time.sleep(delay_s)
        deadline = time.monotonic() + instants.PATIENCE_S
        while awaits is not None and stepper.number >= AWAITS and not awaits.exists():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    Stepper._begin_step = placed  # type: ignore[method-assign]


def job(
    acts: str = "",
    words: str = "",
    optimizer: str = "momentum",
    batchnorm: bool = False,
    save: str = "",
    stop_steps: int | None = None,
    delay: float = 0.0,
    awaits: str = "",
) -> cordee.Job:
    """`save`: such as `steps:6` or `epochs:1`."""
    if acts:
        instants.place(Team, words, acts)
        place(words, acts)
    if delay:
        slow_down(delay, Path(awaits) if awaits else None)
    base = mlp.job(optimizer=optimizer, stop_steps=stop_steps)
    every = {name: int(count) for name, _, count in [save.partition(":")] if name}
    base = base.replace(epochs=2, data={"train": base.data.train}, save=Save(**{"epochs": None, **every}))
    return base.replace(model=Normed) if batchnorm else base
