"""Another job, or the workers of a script, as if they were on several hosts: each shares memory with its own only.

`homes` has a letter for each worker, that of its host. Sums are cut into pieces of few bytes, so that a small model has
many. `falls` is a list such as `2:ending:40`: which worker kills itself, where in its sums, at which piece. A leader
comes to `ending` when it has the result of a piece, to `ended` when it has published it; the others of its host come to
these before and after they copy it. Words may follow, which are waited for before: see `instants.py`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import instants
from torch import Tensor

import cordee
from cordee.group.team import Team
from cordee.group.transport import hierarchy, memory, slots

LEAST_BYTES, SLOT_BYTES = 1024, 4096


def live(homes: str, falls: str = "") -> None:
    """From now on this process is on its host."""
    me = cordee.World.from_env().rank
    memory.home = lambda: homes[me % len(homes)]  # type: ignore[assignment]
    hierarchy.LEAST_BYTES, slots.SLOT_BYTES = LEAST_BYTES, SLOT_BYTES
    for one in filter(None, falls.replace(" ", "").split(",")):
        worker, place, number, *words = one.split(":")
        if int(worker) == me:
            fall(place, int(number), [Path(word) for word in words])


def fall(place: str, number: int, words: Sequence[Path]) -> None:
    """Kill this process at this piece, when these files are there."""
    post, read, end = slots.Slots.post, slots.Slots.have_read, slots.Mate.end

    def come(to: str, piece: int) -> None:
        if (to, piece) == (place, number):
            deadline = time.monotonic() + instants.PATIENCE_S
            while not all(word.exists() for word in words) and time.monotonic() < deadline:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)

    def posting(self: slots.Slots, piece: int, kind: int) -> None:
        if self.own == 0:
            come("ending", piece)
        post(self, piece, kind)
        if self.own == 0:
            come("ended", piece)

    def ending(self: slots.Mate, piece: int, tensor: Tensor) -> bool:
        if self._slots.posted(0) >= piece:
            come("ending", piece)
        return end(self, piece, tensor)

    def reading(self: slots.Slots, piece: int) -> None:
        read(self, piece)
        come("ended", piece)

    slots.Slots.post, slots.Slots.have_read = posting, reading  # type: ignore[method-assign]
    slots.Mate.end = ending  # type: ignore[method-assign]


def job(
    of: str = "steady",
    homes: str = "",
    falls: str = "",
    words: str = "",
    awaits: str = "",
    more: str = "{}",
) -> cordee.Job:
    """The job of another file; `more` has settings of it, in JSON."""
    live(homes, falls)
    instants.place(Team, words, "{}" if words else "")
    given = {"awaits": awaits} if awaits else {}
    made: cordee.Job = importlib.import_module(of).job(**given, **json.loads(more))
    return made
