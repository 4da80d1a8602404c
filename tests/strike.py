"""Signals to the processes of a run, at moments that its record shows, or some time after them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from cordee.core.events import Event, Listener, ServerEvent, StepEvent, WorkerEvent

KINDS = [
    *((f"{role} {shard}",) for role in ("first", "backup") for shard in (0, 1)),
    ("first 0", "backup 1"),
    ("first 0", "backup 0"),
    ("first 1", "worker 1"),
]
Moment = int | Callable[[Event], bool]
"""A step that is on record, or an event."""


class Strikes:
    """Listens to a run, and sends signals to its processes: (moment, workers or roles and shards, signal, delay).

    The run waits for the first of them before its end: on a busy machine its launcher may hear of a step long after it
    was done.
    """

    def __init__(self, struck: Path, *plans: tuple[Moment, tuple[str, ...], signal.Signals, float]) -> None:
        """The run waits for the file `struck`, which is there after the first of them."""
        self.plans = list(plans)
        self.settings = {"awaits": struck}
        self.processes: dict[str, int] = {}
        self.timers: list[threading.Timer] = []

    @classmethod
    def drawn(cls, struck: Path, seed: int) -> Strikes:
        """Five times: a first holder, a backup, one of each, both of a shard, one and a worker."""
        draw = random.Random(seed)
        steps = [draw.randrange(2, 20), *sorted(draw.sample(range(20, 56), 4))]  # the run waits for the first
        return cls(struck, *((step, draw.choice(KINDS), signal.SIGKILL, draw.random() * 0.02) for step in steps))

    def __call__(self, event: Event) -> None:
        if isinstance(event, ServerEvent) and event.what != "lost":
            self.processes[f"{event.what} {event.shard}"] = event.pid
        if isinstance(event, WorkerEvent):
            self.processes[f"worker {event.worker}"] = event.pid
        while self.plans and is_here(self.plans[0][0], event):
            _, victims, number, delay = self.plans.pop(0)
            self.timers.append(threading.Timer(delay, self._strike, (victims, number)))
            self.timers[-1].start()

    def _strike(self, victims: tuple[str, ...], number: signal.Signals) -> None:
        for victim in victims:
            if pid := self.processes.get(victim, 0):
                with contextlib.suppress(ProcessLookupError):  # the run is over, or it was struck before
                    os.kill(pid, number)
        self.settings["awaits"].touch()

    def assert_done(self) -> None:
        assert not self.plans, "the moment to strike never came"
        for timer in self.timers:
            timer.join()


def is_here(moment: Moment, event: Event) -> bool:
    """Whether the moment has come with this event."""
    return moment(event) if callable(moment) else isinstance(event, StepEvent) and event.step >= moment


def striking(victims: dict[int, int], how: signal.Signals) -> Listener:
    """Listens to a run, and ends or stops workers when a step is on record: worker → step."""
    pids: dict[int, int] = {}

    def strike(event: Event) -> None:
        if hasattr(event, "pid") and hasattr(event, "worker"):
            pids[event.worker] = event.pid
        for worker, step in victims.items():
            if getattr(event, "step", -1) >= step and (pid := pids.pop(worker, None)) is not None:
                os.kill(pid, how)

    return strike
