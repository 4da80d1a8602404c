"""What `sync=auto` may choose from, what a step by each of these ways is forecast to take, and which one follows.

Values only: `sync/adaptive.py` measures, and does what is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

HIDES = 0.5
"""The part of the computing, its backward pass, behind which gradients are sent."""
HIDDEN, MERGED, PATIENT = 1.05, 1.15, 1.25
"""What is sent counts as hidden while a step takes at most so many times its computing: for gradients, and for merges.

A merge is waited for, and costs less per step the more steps lie between two. But each further step takes replicas
further apart, so some waiting is accepted before that; most of it by `LAST_NEAR`.
"""
NEAR = 1.1
"""Where nothing hides, the gentlest way is taken whose step is at most so much longer than the shortest."""
WRONG = 1.05
"""A forecast is taken back for what was measured if that is so many times longer."""
BACK = 0.7
"""A gentler way is gone back to only if it would hide on a link of so much of the measured speed."""
LIKE = 1.5
"""What was once measured of a way counts until the link is so many times faster."""


class Way(NamedTuple):
    """How replicas agree."""

    codec: str = "none"
    every: int = 0
    """Parameters are merged after so many steps; 0: gradients are added up in every step."""

    def __str__(self) -> str:
        """As a decision is told: `none`, `int8`, or the keys of a plan for local steps."""
        if not self.every:
            return self.codec
        return f"local_steps={self.every}" + (f",compress={self.codec}" if self.codec != "none" else "")


WAYS = (
    Way(),
    Way("bf16"),
    Way("int8"),
    Way("int8", 8),
    Way("onebit", 8),
    *(Way("int8", every) for every in (16, 32)),
    *(Way("onebit", every) for every in (16, 32)),
)
"""The gentlest first, by `benchmarks/ways.py`. A GPT of 1.1 million parameters (AdamW, 400 steps of tinyshakespeare, 2
replicas) ended, beside a validation loss of 1.911 by exact sums, at 1.912 by int8, at 1.905, 1.913, 1.931 and 1.937 by
int8 every 4, 8, 16 and 32 steps, and at 1.923, 1.948 and 1.990 by one bit every 8, 16 and 32. Gradients lose more: one
bit 2.11, PowerSGD 2.10, the largest numbers 2.56. Merges that are left behind lose more than those that are waited for:
int8 every 8 steps 1.948. So these are not among the ways, nor is int8 every 4 steps: every 8 is as near, and costs half
as much."""

LAST_NEAR = Way("onebit", 8)
"""The last of the ways that ended within 1 % of exact sums."""


class Cost(NamedTuple):
    """What a codec takes for all parameters, on one replica."""

    seconds: float
    """Of computing, to encode its own and decode those of all."""
    sent: float
    """Bytes."""


class Measured(NamedTuple):
    """What a decision rests on."""

    compute_s: float
    """Of a step on the slowest replica, without what is sent."""
    shared_s: float
    """Of a step whose parts are handed out, so that a slow replica computes fewer."""
    step_s: float
    """Of a step by the way in use, all in all."""
    link: float
    """Bytes per second that each replica can send while all do."""
    is_new: bool = False
    """The way in use was not used before: `step_s` has in it what is done for the first time."""


class Decision(NamedTuple):
    """How replicas agree from now on, and why."""

    choice: Way
    forecast_s: dict[Way, float]
    """The time of a step, by each way."""
    reason: str


Tried = Mapping[Way, tuple[float, float]]
"""Of ways that were used: the link's speed then, and how many times its computing a step took."""


def forecast(way: Way, measured: Measured, costs: Mapping[str, Cost], link: float) -> float:
    """The time of a step. Gradients are sent behind the backward pass; what is merged is waited for."""
    cost = costs[way.codec]
    sending = cost.sent / link
    if way.every:
        return measured.shared_s + (cost.seconds + sending) / way.every
    return measured.compute_s + cost.seconds + max(0.0, sending - HIDES * measured.compute_s)


def first_way(ways: Sequence[Way], costs: Mapping[str, Cost], link: float, most_s: float) -> Way:
    """Before the computing is known: the gentlest way that sends for at most `most_s` per step; else the shortest."""
    sending = {way: costs[way.codec].sent / link / max(1, way.every) for way in ways}
    return next((way for way in ways if sending[way] <= most_s), min(ways, key=lambda way: sending[way]))


def decide(measured: Measured, costs: Mapping[str, Cost], ways: Sequence[Way], now: Way, tried: Tried) -> Decision:
    """The gentlest way that hides behind the computing; if none does, one whose step is near the shortest."""
    steps: dict[Way, float] = {}
    for place, way in enumerate(ways):
        back = place < ways.index(now)
        steps[way] = forecast(way, measured, costs, measured.link * (BACK if back else 1.0))
        if way == now and not measured.is_new and measured.step_s > WRONG * steps[way]:
            steps[way] = measured.step_s
        elif back and way in tried and measured.link < LIKE * tried[way][0]:
            steps[way] = max(steps[way], tried[way][1] * measured.compute_s)
    for way in ways:
        if steps[way] <= _most(way) * measured.compute_s:
            return Decision(
                way, steps, f"{way}: a step of {steps[way]:.3g} s, {measured.compute_s:.3g} s of it computes"
            )
    near = next(way for way in ways if steps[way] <= NEAR * min(steps.values()))
    return Decision(near, steps, f"{near}: nothing hides, and its step of {steps[near]:.3g} s is near the shortest")


def _most(way: Way) -> float:
    """How many times its computing a step may take by this way."""
    if way == LAST_NEAR:
        return PATIENT
    return MERGED if way.every else HIDDEN
