"""What `sync=auto` measures by itself: how long steps take, how fast the link is, and what codecs cost here."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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
EARLIER, SLOWER = 16, 2
"""By how much shorter than that the first one is, if the link is as it was, and how much longer is too long for it."""
TRIALS, LONGEST_S = 3, 1.0
"""That exchange is made so often in all, unless it took so long."""
CHECK_S, SAME = 0.02, 0.25
"""An exchange that took so long tells whether the link is as it was: whether it takes the same but for this part."""
LATEST = 20
"""So many steps count, or windows."""


class Clock:
    """How long the latest parts and steps took; by medians: an evaluation between two does not count."""

    def __init__(self, team: Team, *, warms_up: bool = False) -> None:
        """It runs; `warms_up`: the first step does not count, in which much is done for the first time."""
        self._meter, self._warms_up = team.meter, warms_up
        self._computes: deque[float] = deque(maxlen=LATEST)
        self._steps: deque[float] = deque(maxlen=LATEST)
        self._windows: deque[float] = deque(maxlen=LATEST)
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
    long as a sixteenth of what the last measurement says: the link may have become slower. If it takes very long, all
    begin again by what that says. The long one is repeated, and the middle one counts: a quota that holds a host's
    processor back, or a burst, changes one of them. What stays: between two hosts gloo gathers at times 1.5 times as
    long, as merges do, because both send on one connection.
    """

    def __init__(self, each: float, former: float) -> None:
        """A replica sends `each` bytes per number; the link had so many bytes per second, 0: that is not known."""
        self._each = each
        self._begin(former)
        self._seconds: list[float] = []
        self.seen: dict[int, float] = {}
        """How long exchanges of each size took, as a mean over all replicas; of the long one, the shortest."""
        self.is_over = False

    def _begin(self, former: float) -> None:
        self._left = [size for size in SIZES if EARLIER * self._each * size >= LONG_S * former] or SIZES[-1:]

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
        if not self.seen and on_all >= SLOWER * LONG_S and self.size > SIZES[0]:
            self._begin(self._each * self.size / on_all)
            return
        self.seen[self.size] = min(on_all, self.seen.get(self.size, on_all))
        if not self._seconds and on_all < LONG_S and len(self._left) > 1:
            self._left.pop(0)
            return
        self._seconds.append(seconds)
        self.is_over = on_all >= LONGEST_S or len(self._seconds) == TRIALS


class Check:
    """Whether a link that was probed is as it was, by little more than one exchange; a value as `Probe` is one.

    A short exchange goes first: the link may have become much slower. One that takes other than before is made again: a
    host's processor may have been held back.
    """

    def __init__(self, seen: Mapping[int, float]) -> None:
        """With what the probe has seen: how long exchanges of each size took, the shortest first."""
        self._long = next((size for size, took in seen.items() if took >= CHECK_S), max(seen))
        self._before = seen[self._long]
        self._left = [max(SIZES[0], self._long // EARLIER)] if self._long > SIZES[0] else []
        self._left += TRIALS * [self._long]
        self.holds = False

    @property
    def size(self) -> int:
        """Numbers of the next exchange."""
        return self._left[0]

    @property
    def is_over(self) -> bool:
        """Whether nothing more is exchanged."""
        return self.holds or not self._left

    def took(self, seconds: float, on_all: float) -> None:
        """An exchange took so long here, which is not asked, and as a mean over all replicas."""
        size = self._left.pop(0)
        self.holds = size == self._long and abs(on_all - self._before) <= SAME * self._before
        if on_all >= (LONG_S if size < self._long else LONGEST_S):
            self._left.clear()


class Took(NamedTuple):
    """How long an exchange took."""

    seconds: float
    """Here."""
    on_all: float
    """As a mean over all replicas, on which it is the same number."""


class Link:
    """How fast the link between the replicas is, by exchanges that all of them make at the same place."""

    def __init__(self, team: Team, parameters: Sequence[nn.Parameter]) -> None:
        """It is not known; what is exchanged lies where these are."""
        self._team, self._parameters = team, parameters
        self._speed = 0.0
        """As it was probed."""
        self._seen: dict[int, float] = {}
        """How long exchanges took when it was probed."""
        self.worth_s = 0.0
        """How long it took to measure it the last time; a probe, which is needed seldom, counts for a third."""

    def forget(self) -> None:
        """Other replicas exchange from now on."""
        self._seen = {}

    def measure(self) -> float:
        """Bytes per second: what was probed, if exchanges still take as long; 0 if a replica was lost."""
        began = time.perf_counter()
        known = torch.tensor([self._speed, bool(self._seen)], dtype=torch.float64)  # a newcomer knows of none
        if not self._team.sums.sum(known).wait():
            return 0.0
        former, all_know = (known / self._team.replicas).tolist()
        check = Check(self._seen) if all_know == 1.0 else None
        if check is not None and not self._exchange_all(check):
            return 0.0
        if check is not None and check.holds:
            self.worth_s = time.perf_counter() - began
            return self._speed
        probe = Probe(4 * (self._team.replicas - 1), former)
        if not self._exchange_all(probe):
            return 0.0
        self._seen, self._speed = probe.seen, probe.link
        self.worth_s = (time.perf_counter() - began) / 3
        return self._speed

    def _exchange_all(self, asks: Probe | Check) -> bool:
        """What it asks for; False if a replica was lost."""
        device = self._parameters[0].device
        while not asks.is_over:
            if (took := self._exchange(torch.zeros(asks.size, device=device))) is None:
                return False
            asks.took(*took)
        return True

    def _exchange(self, tensor: torch.Tensor) -> Took | None:
        """Show it to all; None if a replica was lost."""
        sums = self._team.sums
        if not sums.sum(torch.zeros(1)).wait():  # all begin at the same time
            return None
        began = time.perf_counter()
        if (parts := sums.gather(tensor).wait()) is None:
            return None
        parts[0][:1].item()
        took = time.perf_counter() - began
        all_took = torch.tensor([took], dtype=torch.float64)
        return Took(took, all_took.item() / sums.size) if sums.sum(all_took).wait() else None


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
