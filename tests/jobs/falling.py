"""The MLP on digits with plain SGD, of whose workers one dies after its fourth step."""

from __future__ import annotations

import os
import signal
from typing import Any

import mlp

import cordee
from cordee.train.session import stepper_of


class Dies(cordee.Callback):
    """Ends one worker."""

    def __init__(self, worker: int) -> None:
        self.worker = worker

    def on_step(self, session: Any, step: Any) -> None:
        if stepper_of(session).team.membership.worker == self.worker and step.number == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def job(dies: int) -> cordee.Job:
    return mlp.job(optimizer="sgd").replace(callbacks=[Dies(dies)])
