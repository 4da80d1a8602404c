"""What the communication of a worker has cost so far: time, and bytes before and after compression."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


class Reading(NamedTuple):
    """What a step is charged with: the difference of two of these."""

    blocked_s: float
    waited_s: float
    hidden_s: float
    bytes_sent: int
    bytes_plain: int
    paused_s: float = 0.0

    def less(self, other: Reading) -> Reading:
        """What was added since `other`."""
        return Reading(
            self.blocked_s - other.blocked_s,
            self.waited_s - other.waited_s,
            self.hidden_s - other.hidden_s,
            self.bytes_sent - other.bytes_sent,
            self.bytes_plain - other.bytes_plain,
            self.paused_s - other.paused_s,
        )

    def part(self, place: int, count: int) -> Reading:
        """One of `count` equal parts; bytes stay whole, and their sum the same."""
        sent, plain = (one * (place + 1) // count - one * place // count for one in (self.bytes_sent, self.bytes_plain))
        blocked_s, waited_s, hidden_s, paused_s = (
            one / count for one in (self.blocked_s, self.waited_s, self.hidden_s, self.paused_s)
        )
        return Reading(blocked_s, waited_s, hidden_s, sent, plain, paused_s)


@dataclass
class Meter:
    """Counts for one worker, over all its collectives and its parameter servers."""

    blocked_s: float = 0.0
    """Time spent in collectives: communication, and waiting for members that come later."""
    waited_s: float = 0.0
    """The part of it in which this worker is known to have waited for others."""
    hidden_s: float = 0.0
    """Time in which it computed while something was seen to be under way: at least so much was hidden."""
    bytes_sent: int = 0
    """To other workers and to parameter servers."""
    bytes_near: int = 0
    """The part of it that did not leave this host."""
    bytes_plain: int = 0
    """What would have been sent without a codec."""
    bytes_received: int = 0
    """From parameter servers; of a collective, a worker receives about as much as it sends."""
    paused_s: Callable[[], float] = lambda: 0.0
    """For how long this process did not run, in whatever it was doing."""
    _under_way: deque[Callable[[], bool]] = field(default_factory=deque)
    """For each thing that was begun: asks whether it has ended."""
    _looked: float = 0.0

    def reading(self) -> Reading:
        """What has been counted by now."""
        times = (self.blocked_s, self.waited_s, self.hidden_s)
        return Reading(*times, self.bytes_sent, self.bytes_plain, self.paused_s())

    def count(self, sent: int, *, near: bool, plain: int | None = None) -> None:
        """So many bytes were sent; without a codec they would have been `plain`."""
        self.bytes_sent += sent
        self.bytes_near += sent if near else 0
        self.bytes_plain += sent if plain is None else plain

    def begun(self, has_ended: Callable[[], bool]) -> None:
        """Something goes on by itself from now on; it is asked whether it `has_ended`, at every look."""
        self.look()
        self._under_way.append(has_ended)

    def look(self) -> float:
        """Called now and then while the worker computes: what is still under way was so since the last look.

        What has ended since then is not counted, as the moment is not known. Returns the time now.
        """
        now = time.perf_counter()
        if self._under_way:
            self._forget_ended()
            self.hidden_s += now - self._looked if self._under_way else 0.0
        self._looked = now
        return now

    def unblock(self, since: float) -> None:
        """This worker was blocked since this `look`, and goes on now."""
        self._looked = time.perf_counter()
        self.blocked_s += self._looked - since
        self._forget_ended()

    def clear(self) -> None:
        """What is under way will not end any more."""
        self._under_way.clear()

    def _forget_ended(self) -> None:
        while self._under_way and self._under_way[0]():
            self._under_way.popleft()
