"""Where the time of steps went: what workers stamped on their own, put together to tell waiting from communication.

A worker knows how long it was blocked in a collective, not why. The stamps that all workers took *before* it do: until
the last one had come, the others waited; what is left is communication.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PARTS = ("data", "compute", "communication", "waiting")
"""What a step's time is made of."""
_MOST_OPEN = 20_000
"""Steps that may wait for a worker's report; older ones are closed with those that came."""


class TimeSplit:
    """Totals per worker, in seconds, from `times` records as they come in."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._members: frozenset[int] = frozenset()
        self._open: dict[int, dict[int, tuple[float, float]]] = {}
        self._totals: dict[int, dict[str, float]] = {}

    def expect(self, workers: Iterable[int]) -> None:
        """From here on these are the workers of a step; what a lost one did not report will not come any more."""
        self._members = frozenset(workers)
        for step in [step for step, came in self._open.items() if self._members <= came.keys()]:
            self._close(step)

    def add(self, worker: int, record: Mapping[str, Any]) -> None:
        """One worker's times of some consecutive steps."""
        totals = self._totals.setdefault(worker, dict.fromkeys(PARTS, 0.0))
        totals["data"] += sum(record["data_ms"]) / 1e3
        totals["compute"] += sum(record["compute_ms"]) / 1e3
        stamps = zip(record["arrived"], record["blocked_ms"], strict=True)
        for step, (arrived, blocked_ms) in enumerate(stamps, start=record["from"]):
            came = self._open.setdefault(step, {})
            came[worker] = (arrived, blocked_ms / 1e3)
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
        last = max(arrived for arrived, _ in came.values())
        for worker, (arrived, blocked) in came.items():
            waiting = min(blocked, last - arrived)
            self._totals[worker]["waiting"] += waiting
            self._totals[worker]["communication"] += blocked - waiting


def shares(totals: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The part of the workers' time that went into each part, from 0 to 1; empty if there was none."""
    whole = sum(sum(parts.values()) for parts in totals.values())
    return {part: sum(parts[part] for parts in totals.values()) / whole for part in PARTS} if whole else {}
