"""`sync=auto`: how gradients are sent is chosen by what is measured: the gentlest way that hides behind the computing.

Every few steps all replicas agree on how long they compute and how fast the link between them is, and take the same
decision: exact sums first, then codecs by growing distance from them. What a codec has left out goes with the next
step, whichever way that is sent. Each decision is an event, with its numbers and the step times that it forecasts; the
next one tells what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from cordee.core.events import DecisionEvent
from cordee.group.comm import Handle
from cordee.group.team import Team
from cordee.sync.buckets import Bucket
from cordee.sync.codec.powersgd import RANK
from cordee.sync.codec.topk import KEPT
from cordee.sync.lossy import CODECS, Exact, Lossy
from cordee.sync.seam import Kept

OPTIONS = ("none", "bf16", "int8", "powersgd", "topk")
"""The gentlest first."""
FIRST, EVERY = 4, 20
"""The first decision comes after so many steps, the others follow at this distance."""
PROBES, LONG_S = [1 << power for power in range(15, 21)], 0.03
"""To measure the link, so many numbers are added up one after the other, 128 KiB to 4 MiB, until one took so long."""
HIDDEN = 1.05
"""What is sent counts as hidden while a step takes at most so many times its computing."""
NEAR = 1.25
"""Where nothing hides, the gentlest way is taken whose step is at most so much longer than the shortest."""
HIDES = 0.5
"""The part of the computing, its backward pass, behind which what is sent can hide."""
BACK = 0.8
"""A gentler way is gone back to only if it takes at most so much of the time in which it hides."""


class Measured(NamedTuple):
    """What a decision rests on."""

    compute_s: float
    """Of a step, on the slowest replica."""
    link: float
    """Bytes per second that each replica can send while all do."""


class Decision(NamedTuple):
    """How gradients are sent from now on, and why."""

    choice: str
    forecast_s: dict[str, float]
    """The time of a step, by each way."""
    reason: str


def bytes_sent(option: str, shapes: Sequence[Sequence[int]], replicas: int) -> float:
    """What one replica sends in a step, for gradients of these shapes in float32."""
    count = float(sum(torch.Size(shape).numel() for shape in shapes))
    summed, shown = 2 * (replicas - 1) / replicas, replicas - 1
    if option == "powersgd":
        return summed * 4 * sum(_thin(shape) for shape in shapes)
    each = {"none": 4 * summed, "bf16": 2 * shown, "int8": 1.016 * shown, "topk": 8 * KEPT * shown}
    return each[option] * count


def _thin(shape: Sequence[int]) -> float:
    count = torch.Size(shape).numel()
    rows = shape[0] if len(shape) > 1 else 1
    thin = RANK * (rows + count // max(rows, 1))
    return min(count, thin)


def decide(
    measured: Measured, shapes: Sequence[Sequence[int]], replicas: int, options: Sequence[str], now: str
) -> Decision:
    """The gentlest way that hides behind the computing; if none does, the one with the shortest step."""
    sending = {one: bytes_sent(one, shapes, replicas) / measured.link for one in options}
    hidden = HIDES * measured.compute_s
    steps = {one: measured.compute_s + max(0.0, taken - hidden) for one, taken in sending.items()}
    for place, one in enumerate(options):
        back = place < options.index(now)
        if sending[one] <= BACK * hidden if back else steps[one] <= HIDDEN * measured.compute_s:
            return Decision(one, steps, f"{one}: sending takes {sending[one]:.3g} s, {hidden:.3g} s hide it")
    near = next(one for one in options if steps[one] <= NEAR * min(steps.values()))
    return Decision(near, steps, f"{near}: nothing hides behind {hidden:.3g} s, and its step is near the shortest")


class Adaptive(Lossy):
    """Sums over all replicas, by a way that is chosen again every few steps."""

    def __init__(self, parameters: Sequence[nn.Parameter], team: Team, kept: Kept, options: Sequence[str]) -> None:
        """It begins with exact sums."""
        super().__init__("bf16", parameters, team, kept)
        self._options, self._shapes = options, [tuple(one.shape) for one in parameters]
        self._choice = "none"
        self._steps = 0
        self._since, self._blocked = time.perf_counter(), team.meter.blocked_s
        """When the time began that is measured, and what had been waited until then."""
        self._exact: list[Bucket] = []
        """Buckets of the open step that are added up as they are."""

    def begin(self) -> None:
        """A step begins, or begins again."""
        super().begin()
        self._exact.clear()

    def sum(self, bucket: Bucket, turn: int) -> Handle:
        """By the way that was chosen; what was left out goes along."""
        if self._choice != "none":
            return super().sum(bucket, turn)
        self.add_left_out(bucket, turn)
        self._exact.append(bucket)
        return Exact.sum(self, bucket, turn)

    def commit(self) -> None:
        """The step has committed; decide again, if it is time."""
        super().commit()
        for bucket in self._exact:
            for parameter in bucket.parameters:
                self._left_out.pop(parameter, None)
        self._steps += 1
        if self._steps == 1:  # the first steps take longer
            self._begin_to_measure()
        if self._steps % EVERY == FIRST and self.team.replicas > 1:
            self._decide()

    def _begin_to_measure(self) -> None:
        self._since, self._blocked, self._first = time.perf_counter(), self.team.meter.blocked_s, self._steps

    def _decide(self) -> None:
        """All replicas measure and agree; if one is lost meanwhile, the next time will do."""
        meter, steps = self.team.meter, max(1, self._steps - self._first)
        step_s = (time.perf_counter() - self._since) / steps
        compute_s = max(1e-6, step_s - (meter.blocked_s - self._blocked) / steps)
        if not self.team.agree([torch.zeros(1)]):  # all begin to send at the same time
            self._begin_to_measure()
            return
        link = self._probe()
        table = torch.zeros(self.team.replicas, 3, dtype=torch.float64)
        table[self.team.replica] = torch.tensor([compute_s, step_s, link])
        if self.team.agree([table]) and bool(table[:, 2].min() > 0):
            measured = Measured(float(table[:, 0].max()), float(table[:, 2].min()))
            decision = decide(measured, self._shapes, self.team.replicas, self._options, self._choice)
            self._tell(decision, measured, float(table[:, 1].max()))
            self._take(decision.choice)
        self._begin_to_measure()

    def _probe(self) -> float:
        """Bytes per second over the link, the best of two; 0 if a replica was lost.

        A short exchange may fit into what a link lets through at once, so it grows. How long the one before took
        travels along: so all replicas go on, or stop, after the same one.
        """
        took, rates = 0.0, [0.0]
        each = 8 * (self.team.replicas - 1) / self.team.replicas
        for size in PROBES:
            numbers = torch.full((size,), took)
            began = time.perf_counter()
            if not self.team.sums.sum(numbers).wait():
                return 0.0
            took = time.perf_counter() - began
            rates.append(each * size / took)
            if float(numbers[0]) >= LONG_S * self.team.replicas:
                break
        return max(rates[-2:])

    def _take(self, choice: str) -> None:
        if choice != self._choice:
            self._choice = choice
            self._memory.clear()
            self._codec = CODECS.get(choice, self._codec)

    def _tell(self, decision: Decision, measured: Measured, step_s: float) -> None:
        if self.team.speaks:
            forecast = {name: round(1e3 * seconds, 3) for name, seconds in decision.forecast_s.items()}
            numbers = (round(1e3 * measured.compute_s, 3), round(8e-6 * measured.link, 3), round(1e3 * step_s, 3))
            event = DecisionEvent(
                self.team.steps + 2, self._choice, decision.choice, decision.reason, *numbers, forecast
            )
            self.team.channel.post(event)
