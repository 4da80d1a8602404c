"""Windows: runs of consecutive steps whose parts any replica may compute, in any order, until all agree at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

Item = tuple[int, int]
"""A step, and a part of its global batch."""


class InHand(NamedTuple):
    """The part of a window that a replica computes now."""

    window: tuple[int, int]
    """The window's number."""
    step: int
    part: int
    share: float
    """How much of the global batch it is, by samples."""
    steps: int = 1
    """Of the window."""
    lift: float = 1.0
    """What the learning rate is multiplied by, of an optimizer that divides gradients by their size."""


def lift_of(fractions: Sequence[float]) -> float:
    """What learning rates of Adam and its kin are multiplied by where a step is cut into parts of these sizes.

    Such an optimizer divides gradients by their size, which is mostly noise. The gradient of a part of w of the batch
    has 1/sqrt(w) of the noise of the whole, so its update goes sqrt(w) as far towards the minimum. The mean of all
    parts' updates, weighted by w, goes sum of w * sqrt(w): for n equal parts 1/sqrt(n) of what one process goes.
    """
    return 1.0 / sum(one * math.sqrt(one) for one in fractions)


class Rule(msgspec.Struct, frozen=True):
    """How a way to agree wants its windows."""

    steps: int
    """So many steps at most; the end of an epoch ends a window too, and a step at which all must stop."""
    bound: int | None = None
    """A part of step t is computed when all parts of steps up to t - bound - 1 are done; None: whenever it is free."""
    redo: bool = True
    """Whether what a lost worker has done in the open window is lost with it, so that others do it again."""
    behind: bool = False
    """Whether what a window came to may travel while the next one is computed: no worker waits for its merge."""


class Window(msgspec.Struct, frozen=True):
    """One window: which steps it holds, and into how many parts each of them is cut."""

    number: tuple[int, int]
    """Loops and agreements before it: no two windows of a run have the same, also if a loop was left before its end."""
    first: int
    """Its first step, counted over all epochs."""
    end: int
    """The step after its last."""
    members: tuple[int, ...]
    """The workers when it began. Each step has a part for each of them, which others may compute."""
    rule: Rule
    former: tuple[int, int] | None = None
    """The number of the window before, if its merge is under way: what a lost worker did there is done again here."""
