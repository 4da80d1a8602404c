"""The GPT of `gpt.py`, saved every fourth step, of which one worker is killed once."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpt

import cordee


class Dies(cordee.Callback):
    """Kills worker 1 after a step, if `file` is there, and takes that away first: the next start lives."""

    def __init__(self, file: str, step: int) -> None:
        self.file, self.step = Path(file), step

    def on_step(self, session: Any, step: Any) -> None:
        if session.rank == 1 and step.number + 1 == self.step and self.file.exists():
            self.file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def job(file: str = "", step: int = 11) -> cordee.Job:
    made = gpt.job(stop_steps=20, save_steps=4)
    return replace(made, clip=0.5, epochs=3, callbacks=[Dies(file, step)] if file else [])
