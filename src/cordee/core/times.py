"""Where the time of steps went: what workers stamped on their own, put together to tell waiting from communication.

A worker knows how long it was blocked in a collective, not why. The stamps that all workers took *before* it do: until
the last one had come, the others waited; what is left is communication.

The first step of a start begins for each worker when it is ready. What it waits there until the last one is ready is
no time of a step: it belongs to the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

PARTS = ("data", "compute", "callbacks", "communication", "waiting")
"""What a step's time is made of."""
_MOST_OPEN = 20_000
"""Steps that may wait for a worker's report; older ones are closed with those that came."""


class StepTimes(NamedTuple):
    """One step on one worker, in seconds."""

    data: float
    compute: float
    communication: float
    waiting: float
    samples: int
    arrived: float
    """When the worker came to the collective, in the launcher's clock."""
    callbacks: float = 0.0


class _Stamped(NamedTuple):
    """What a worker says of one step."""

    data: float
    compute: float
    blocked: float
    waited: float
    samples: int
    arrived: float
    callbacks: float = 0.0

    @property
    def began(self) -> float:
        """When the step began for this worker, in the launcher's clock."""
        return self.arrived - self.data - self.compute - self.callbacks - self.waited


def callbacks_of(record: Mapping[str, Any]) -> list[float]:
    """The times of callbacks in a `times` record; zeros if it is one of a version that counted them as computing."""
    return record.get("callbacks_ms") or [0.0] * len(record["arrived"])


OnStep = Callable[[int, Mapping[int, StepTimes]], None]
"""Called with a step's number (from 0) and its times by worker, when all have reported."""


class TimeSplit:
    """Totals per worker, in seconds, from `times` records as they come in."""

    def __init__(self, on_step: OnStep | None = None) -> None:
        """Nothing yet."""
        self._on_step = on_step
        self._members: frozenset[int] = frozenset()
        self._open: dict[int, dict[int, _Stamped]] = {}
        self._totals: dict[int, dict[str, float]] = {}
        self._begun = False

    def expect(self, workers: Iterable[int]) -> None:
        """From here on these are the workers of a step; what a lost one did not report will not come any more."""
        self._members = frozenset(workers)
        for step in [step for step, came in self._open.items() if self._members <= came.keys()]:
            self._close(step)

    def add(self, worker: int, record: Mapping[str, Any]) -> None:
        """One worker's times of some consecutive steps."""
        columns = (record[name] for name in ("data_ms", "compute_ms", "blocked_ms", "waited_ms", "samples", "arrived"))
        rows = zip(*columns, callbacks_of(record), strict=True)
        for step, (*parts, samples, arrived, callbacks) in enumerate(rows, start=record["from"]):
            data, compute, blocked, waited = (milliseconds / 1e3 for milliseconds in parts)
            came = self._open.setdefault(step, {})
            came[worker] = _Stamped(data, compute, blocked, waited, samples, arrived, callbacks / 1e3)
            if came.keys() >= self._members:
                self._close(step)
        while len(self._open) > _MOST_OPEN:
            self._close(next(iter(self._open)))

    def totals(self) -> dict[str, dict[str, float]]:
        """Seconds by worker and part, of all that was reported."""
        for step in list(self._open):
            self._close(step)
        return {
            str(worker): {part: round(seconds, 4) for part, seconds in parts.items()}
            for worker, parts in sorted(self._totals.items())
        }

    def _close(self, step: int) -> None:
        came = self._open.pop(step)
        split = split_step(came)
        early = {} if self._begun else before_all_were_ready({worker: one.began for worker, one in came.items()})
        self._begun = True
        for worker, times in split.items():
            totals = self._totals.setdefault(worker, dict.fromkeys(PARTS, 0.0))
            for part in PARTS:
                totals[part] += getattr(times, part)
            totals["waiting"] -= min(times.waiting, early.get(worker, 0.0))
        if self._on_step is not None:
            self._on_step(step, split)


def split_step(came: Mapping[int, _Stamped]) -> dict[int, StepTimes]:
    """Tell waiting from communication, now that it is known who came last."""
    last = max(one.arrived for one in came.values())
    split = {}
    for worker, one in came.items():
        waiting = one.waited + max(0.0, min(one.blocked - one.waited, last - one.arrived))
        communication = one.blocked - waiting
        split[worker] = StepTimes(
            one.data, one.compute, communication, waiting, one.samples, one.arrived, one.callbacks
        )
    return split


def before_all_were_ready(began: Mapping[int, float]) -> dict[int, float]:
    """How long after each worker had begun its first step the last one began its own, in seconds."""
    last = max(began.values())
    return {worker: last - one for worker, one in began.items()}


def shares(totals: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The part of the workers' time that went into each part, from 0 to 1; empty if there was none."""
    whole = sum(sum(parts.values()) for parts in totals.values())
    return {part: sum(parts[part] for parts in totals.values()) / whole for part in PARTS} if whole else {}
