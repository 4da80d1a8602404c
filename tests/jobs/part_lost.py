"""The GPT of `gpt.py`, saved every so many steps, of which one worker is killed, once or again and again."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpt

import cordee
from cordee.train.job import Save


class Dies(cordee.Callback):
    """Kills worker `who` after a step, if `file` is there, and takes that away first: the next start lives.

    `always`: it stays. `waits`: instead of being killed it makes that file, and comes no further.
    """

    def __init__(self, file: str, step: int, who: int, always: bool, waits: str) -> None:
        self.file, self.step, self.who, self.always, self.waits = Path(file), step, who, always, waits

    def on_step(self, session: Any, step: Any) -> None:
        if session.rank != self.who or step.number + 1 != self.step or not self.file.exists():
            return
        if not self.always:
            self.file.unlink()
        while self.waits:
            Path(self.waits).touch()
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)


def job(
    file: str = "", step: int = 11, save: int = 4, who: int = 1, always: bool = False, waits: str = ""
) -> cordee.Job:
    """`save`: steps between two checkpoints; 0: only the end is saved."""
    made = gpt.job(stop_steps=20)
    rule = Save(steps=save) if save else Save(epochs=None)
    callbacks = [Dies(file, step, who, always, waits)] if file else []
    return replace(made, clip=0.5, epochs=3, save=rule, callbacks=callbacks)
