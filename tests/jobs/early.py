"""The blocks of `sliced.py`, of which workers die before the first step.

`dies` is a list such as `4:job,1:mesh:2`: which worker, and where. At `job` it makes its job, and the group of all
workers is not formed yet; at `mesh:N` it is about to make the N-th of the groups over which a model lies.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import sliced

import cordee
from cordee.group.registered import Registered


def die_at_group(number: int) -> None:
    make, made = Registered._make, []

    def placed(registered: Registered, options: Any) -> Any:
        made.append(options)
        if len(made) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return make(registered, options)

    Registered._make = placed  # type: ignore[method-assign]


def job(dies: str = "") -> cordee.Job:
    me = str(cordee.World.from_env().rank)
    for worker, place, *number in (one.split(":") for one in filter(None, dies.split(","))):
        if worker == me and place == "job":
            os.kill(os.getpid(), signal.SIGKILL)
        elif worker == me:
            die_at_group(int(number[0]))
    return sliced.job(kind="blocks", epochs=1, clip=0.5)
