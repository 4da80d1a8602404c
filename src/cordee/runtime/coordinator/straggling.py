"""Who makes the others wait, and why: a pure function from where the time of some steps went on each worker.

A worker is late if all workers of other hosts (on one host: all other workers) would have arrived earlier without it,
and did wait. Computing counts by samples: a worker whose share is larger is not slow for that. A pause counts
wherever it fell. A slow link makes communication as long on all workers: which one's it is, the speeds of links say
that were measured at the start.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

NEAR = 0.9
"""Of equally slow workers of a host, up to so much of the slowest one's time, it is always the first that is named."""
SLOW_LINK = 0.5
"""A host's fastest link that has less than this part of what every other host has on one of its own is slow."""
_LEAST_MS = 1e-3
"""No step is shorter; differences of clocks can be 0, or below."""
Cause = Literal["data", "compute", "callbacks", "network", "paused"]
Link = tuple[str, str, float, float]
"""From host, to host, Mbit/s, round trip in ms: as the event `links` has it."""


class Times(NamedTuple):
    """Milliseconds of a worker per step, as a mean over some steps."""

    host: str
    samples: float
    data: float
    compute: float
    callbacks: float
    communication: float
    waiting: float
    paused: float

    @property
    def step(self) -> float:
        """A whole step; `paused` is within the other parts."""
        return max(self.own + self.communication + self.waiting, _LEAST_MS)

    @property
    def own(self) -> float:
        """What does not depend on others."""
        return max(self.data + self.compute + self.callbacks, 0.0)

    def with_samples(self, samples: float) -> Times:
        """As it would be with so many samples."""
        return self._replace(
            compute=self.compute * samples / self.samples if self.samples and samples else self.compute
        )


class Slow(NamedTuple):
    """A worker that makes the others wait."""

    worker: int
    cause: Cause
    part: float
    """Of a step: what all would gain if it were like the others."""
    took_ms: float
    usual_ms: float


def judge(times: Mapping[int, Times], links: Sequence[Link] = (), *, staged: bool = False) -> list[Slow]:
    """The workers that make the others wait by any part of a step, each at most once for itself and once for its link.

    `staged`: workers compute different parts of a model, so that only pauses and links can be compared.
    """
    if len(times) < 2:
        return []
    late = [] if staged else _late(times)
    known = {one.worker for one in late}
    return late + [one for one in _paused(times) if one.worker not in known] + _behind_a_slow_link(times, links)


def _late(times: Mapping[int, Times]) -> list[Slow]:
    """The worker that comes last, if the others would be faster without it."""
    last = max(times, key=lambda worker: times[worker].own)
    beside = [one for one in times if times[one].host == times[last].host]
    if len(beside) < len(times):  # of the workers of a slow host it is always the same one
        last = min(one for one in beside if times[one].own >= NEAR * times[last].own)
    slow = times[last]
    others = [one.with_samples(slow.samples) for one in _others(times, last) if one.samples or not slow.samples]
    if not others:  # their shares are empty: they wait for all that there is to compute, and cannot be compared
        return []
    excess = slow.own - max(one.own for one in others)
    part = min(excess, statistics.fmean(one.waiting for one in others) - slow.waiting) / slow.step
    if part <= 0:
        return []
    causes: tuple[Cause, ...] = ("data", "compute", "callbacks")
    usual = {cause: statistics.median(getattr(one, cause) for one in others) for cause in (*causes, "paused")}
    cause: Cause = max(causes, key=lambda one: getattr(slow, one) - usual[one])
    if slow.paused - usual["paused"] >= excess / 2:
        cause = "paused"
    return [Slow(last, cause, part, getattr(slow, cause), usual[cause])]


def _paused(times: Mapping[int, Times]) -> list[Slow]:
    """A worker that is stopped while it communicates: the others take that for communication, too."""
    worker = max(times, key=lambda one: times[one].paused)
    slow, usual = times[worker], max(one.paused for one in _others(times, worker))
    part = (slow.paused - slow.waiting - usual) / slow.step
    return [Slow(worker, "paused", part, slow.paused, usual)] if part > 0 else []


def _behind_a_slow_link(times: Mapping[int, Times], links: Iterable[Link]) -> list[Slow]:
    """The first worker of the host of which all links are slow, while every other host has a fast one.

    Of two hosts, times do not tell whose link it is.
    """
    speeds: dict[str, float] = {}
    for one, other, mbit_s, _ in links:
        for host in (one, other):
            speeds[host] = max(speeds.get(host, 0.0), mbit_s)
    here = {one.host for one in times.values()}
    speeds = {host: speed for host, speed in speeds.items() if host in here}
    if len(speeds) < 3:
        return []
    slow, second, *_ = sorted(speeds, key=lambda host: speeds[host])
    if speeds[slow] > SLOW_LINK * speeds[second]:
        return []
    worker = min(one for one in times if times[one].host == slow)
    took = statistics.median(one.communication for one in times.values())
    usual = took * speeds[slow] / speeds[second]
    return [Slow(worker, "network", (took - usual) / times[worker].step, took, usual)]


def _others(times: Mapping[int, Times], worker: int) -> list[Times]:
    """The workers of other hosts; if there are none, all other workers."""
    far = [one for one in times.values() if one.host != times[worker].host]
    return far or [one for number, one in times.items() if number != worker]
