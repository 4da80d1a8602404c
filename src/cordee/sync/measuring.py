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
