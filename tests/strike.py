"""A signal to one worker of a run, at a moment that its record shows, or some time after it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from cordee.core.events import Event, Listener, StepEvent


class Strike:
    """Listens to a run and sends a signal to one of its workers at a chosen moment.

    The run waits for it before its end: on a busy machine its launcher may hear of a step long after it was done.
    """

    def __init__(
        self, pids: Path, victim: int, number: signal.Signals, when: Callable[[Event], bool], delay: float
    ) -> None:
        pids.mkdir(exist_ok=True)
        self.settings = {"pids": pids, "awaits": pids / "struck"}
        self._victim, self._number, self._when, self._delay = victim, number, when, delay
        self.timer: threading.Timer | None = None

    def __call__(self, event: Event) -> None:
        if self.timer is None and self._when(event):
            self.timer = threading.Timer(self._delay, self._strike)
            self.timer.start()

    def _strike(self) -> None:
        os.kill(int((self.settings["pids"] / str(self._victim)).read_text()), self._number)
        self.settings["awaits"].touch()

    def assert_done(self) -> None:
        assert self.timer is not None, "the moment to strike never came"
        self.timer.join()


def after_step(step: int) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, StepEvent) and event.step >= step


def striking(victims: dict[int, int], how: signal.Signals) -> Listener:
    """Listens to a run, and ends or stops workers when a step is on record: worker → step."""
    pids: dict[int, int] = {}

    def strike(event: Event) -> None:
        if hasattr(event, "pid"):
            pids[event.worker] = event.pid
        for worker, step in victims.items():
            if getattr(event, "step", -1) >= step and (pid := pids.pop(worker, None)) is not None:
                os.kill(pid, how)

    return strike
