"""What `sync=auto` measures by itself: how long steps take, and what codecs cost on this processor."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from cordee.group.team import Team
from cordee.sync.codec.seam import Summed
from cordee.sync.lossy import CODECS
from cordee.sync.ways import Cost

SAMPLE = 2_000_000
"""Codecs are tried on so many numbers."""
SIZES, LONG_S = [1 << power for power in range(13, 21)], 0.06
"""To measure the link, so many numbers are shown to all, 32 KiB to 4 MiB, until one such exchange took so long."""
EARLIER = 16
"""By how much shorter than that the first one is, if the link is as it was."""
TRIALS, LONGEST_S = 3, 1.0
"""That exchange is made so often in all, unless it took so long."""


class Clock:
    """How long parts and steps have taken since it was made; by medians: an evaluation between two does not count."""

    def __init__(self, team: Team, *, warms_up: bool = False) -> None:
        """It runs; `warms_up`: the first step does not count, in which much is done for the first time."""
        self._meter, self._warms_up = team.meter, warms_up
        self._computes: list[float] = []
        self._steps: list[float] = []
        self._windows: list[float] = []
        self._updated, self._blocked = time.perf_counter(), team.meter.blocked_s
        self._merged, self._uncounted = self._updated, 0

    def updated(self) -> None:
        """A step, or a part of one, was computed and applied."""
        took, blocked = time.perf_counter() - self._updated, self._meter.blocked_s - self._blocked
        self._updated, self._blocked = self._updated + took, self._meter.blocked_s
        if self._warms_up:
            self._warms_up = False
            self._merged, self._uncounted = self._updated, 1
            return
        self._steps.append(took)
        self._computes.append(took - blocked)

    def merged(self, steps: int) -> None:
        """So many steps were merged."""
        now, counted = time.perf_counter(), steps - self._uncounted
        if counted:
            self._windows.append((now - self._merged) / counted)
        self._merged, self._uncounted = now, 0

    @property
    def compute_s(self) -> float:
        """What a part of a step takes, without waiting."""
        return max(1e-6, statistics.median(self._computes or [0.0]))

    @property
    def step_s(self) -> float:
        """What a step takes, all in all."""
        return statistics.median_low(self._windows or self._steps or [0.0])


class Probe:
    """Which exchange measures the link next, and what its speed is: a value that all replicas keep alike.

    A short exchange may fit into what a link lets through at once, so they grow until one takes long; the first is as
    long as a sixteenth of what the last measurement says: the link may have become slower. The long one is repeated,
    and the middle one counts: a quota that holds a host's processor back, or a burst, changes one of them. What stays:
    between two hosts gloo gathers at times 1.5 times as long, as merges do, because both send on one connection.
    """

    def __init__(self, each: float, former: float) -> None:
        """A replica sends `each` bytes per number; the link had so many bytes per second, 0: that is not known."""
        self._each = each
        self._left = [size for size in SIZES if EARLIER * each * size >= LONG_S * former] or SIZES[-1:]
        self._seconds: list[float] = []
        self.is_over = False

    @property
    def size(self) -> int:
        """Numbers of the next exchange, or of the last one."""
        return self._left[0]

    @property
    def link(self) -> float:
        """Bytes per second."""
        return self._each * self.size / statistics.median(self._seconds)

    def took(self, seconds: float, on_all: float) -> None:
        """An exchange took so long here, and as a mean over all replicas, by which they all go on alike."""
        if not self._seconds and on_all < LONG_S and len(self._left) > 1:
            self._left.pop(0)
            return
        self._seconds.append(seconds)
        self.is_over = on_all >= LONGEST_S or len(self._seconds) == TRIALS


def costs_of(
    parameters: Sequence[nn.Parameter], codecs: Iterable[str], replicas: int, stations: int
) -> dict[str, Cost]:
    """What each codec takes, tried on some of the parameters; sums go around a ring of so many `stations`."""
    some: list[nn.Parameter] = []
    for parameter in parameters:
        if not some or sum(one.numel() for one in [*some, parameter]) <= SAMPLE:
            some.append(parameter)
    sizes = [one.numel() for one in some]
    times = sum(one.numel() for one in parameters) / sum(sizes)
    summed, shown = 2 * (stations - 1) / stations, replicas - 1
    flat = torch.linspace(-1.0, 1.0, sum(sizes), dtype=some[0].dtype, device=some[0].device)
    found = {}
    for name in codecs:
        if name == "none":
            found[name] = Cost(0.0, times * summed * flat.nbytes)
            continue
        windows = [part.view(one.shape) for part, one in zip(torch.split(flat.clone(), sizes), some, strict=True)]
        began, sent = time.perf_counter(), 0.0
        exchange = CODECS[name](flat.clone(), windows, {})
        message = next(exchange)
        with contextlib.suppress(StopIteration):
            while True:
                is_sum = isinstance(message, Summed)
                sent += message.tensor.nbytes * (summed if is_sum else shown)
                message = exchange.send(message.tensor if is_sum else [message.tensor] * replicas)
        flat[:1].item()
        found[name] = Cost(times * (time.perf_counter() - began), times * sent)
    return found
