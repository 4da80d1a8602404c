"""What the tests of the preflight find: plain values, which travel between workers and are judged in one place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cordee.train.preflight.passes import Pass

TOLERANCE_EPSILONS = 8.0
"""Errors of rounding that the interaction test allows, in units of the format's epsilon."""

MOST_BUFFERS = 100
"""Buffers that a finding names."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one test."""

    test: str
    void: str = ""
    """Why the test says nothing; empty if it speaks."""
    over: float = 0.0
    """The largest error, in units of its tolerance: above 1 the shares of a batch do not add up."""
    normalised: float | None = None
    """The same if shares weighed what the losses that were called divide by; None if there is no such number."""
    trusted: bool = True
    """Whether errors count: draws that could not be replayed make errors of their own."""
    losses: tuple[float, ...] = ()
    """Of the whole and of its parts."""
    weights: tuple[float, ...] = ()
    gradient_off: float = 0.0
    is_sum: bool = False
    share: float | None = None
    """If the whole is a mean of the parts with other weights than declared: the weight of the first."""
    buffers: dict[str, bool] = field(default_factory=dict)
    """Buffers that the pass updates from its batch: whether the update is a mean over samples."""
    state: str = ""
    """What else is kept from batch to batch and changes later losses."""
    error: str = ""
    """The user's code failed in this test."""

    @property
    def wrong(self) -> bool:
        """Whether the test speaks against the objective."""
        return not self.void and self.over > 1.0

    @property
    def right(self) -> bool:
        """Whether the test speaks for it."""
        return not self.void and self.over <= 1.0


def vector(one: Pass) -> list[float]:
    """What is compared of a pass: its loss, and the projections of its gradient."""
    return [one.loss, *one.sketch]


def weighed(one: Pass, weight: float) -> list[float]:
    """The same times a weight; without weight there may be no number at all (0/0), and it counts nothing."""
    return [weight * value for value in vector(one)] if weight else [0.0] * (1 + len(one.sketch))


def is_nothing(passes: Iterable[Pass]) -> bool:
    """Whether losses and gradients are zero up to rounding: a student that begins as a copy of its teacher."""
    return all(max(abs(one.loss), one.size) <= 64 * one.epsilon for one in passes if one.finite)


NOTHING = "the loss and its gradient are zero up to rounding"
