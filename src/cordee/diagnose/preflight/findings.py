"""What the tests of the preflight find: plain values, which travel between workers and are judged in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cordee.diagnose.preflight.passes import Pass

MOST_BUFFERS = 100
"""Buffers that a finding names."""
TINY = 1e-300
"""Added to tolerances, which may be zero."""


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
    losses: Sequence[float] = ()
    """Of the whole and of its parts."""
    weights: Sequence[float] = ()
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


def why_void(passes: Sequence[Pass]) -> str:
    """Why passes cannot be compared; empty if they can."""
    if not all(one.finite or not one.weight for one in passes):
        return "the loss is not finite"
    # A student that begins as a copy of its teacher, for instance.
    if all(max(abs(one.loss), one.size) <= 64 * one.epsilon for one in passes if one.finite):
        return "the loss and its gradient are zero up to rounding"
    return ""


def normalisers(passes: Sequence[Pass]) -> list[float] | None:
    """What the losses of each pass divide by; None if that is not known of all of them."""
    totals = [one.normaliser for one in passes]
    known = [total for total in totals if total is not None]
    return known if len(known) == len(totals) else None


def weigh(passes: Sequence[Pass], weights: Sequence[float]) -> Tensor:
    """The vector of each pass times its weight; without weight there may be no number (0/0), and it counts nothing."""
    pairs = zip(passes, weights, strict=True)
    return torch.stack([weight * one.vector if weight else torch.zeros_like(one.vector) for one, weight in pairs])
