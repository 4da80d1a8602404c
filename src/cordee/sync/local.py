"""Local steps: every replica updates by what it computes, and all average their parameters every few steps.

The steps between two merges are a window: which replica computes which part of them is decided as they go, so a slow
replica computes fewer. A merge is the mean of the replicas' parameters, each weighted by what it has computed since the
merge before; states of optimizers stay each replica's own. With one step per merge and plain SGD that is the update of
all-reduce. Otherwise it is not what one process would have trained: such a plan is statistical. With an outer update,
the mean is not taken as it is: the way to it from the merge before is a gradient, of SGD with momentum.

What a lost replica computed since the last merge is lost with it: the others compute those parts again before they
merge. One replica alone has no windows: it goes on step by step, and only outer updates are left of its merges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.group.team import Team
from cordee.sync.gradients import treat
from cordee.sync.seam import Agreed, Kept, Recorded, Sync, Treatment
from cordee.sync.sparse import numbers_of

MOMENTUM = "outer momentum"
"""The name of what is kept for the outer update."""


class Outer(NamedTuple):
    """How the mean of the replicas is applied, as in DiLoCo (Douillard and others, 2023)."""

    lr: float
    momentum: float


class LocalSteps(Sync):
    """Updates locally, and merges at the end of each window; see `Sync`."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        team: Team,
        *,
        every: int,
        outer: Outer | None = None,
        kept: Kept | None = None,
    ) -> None:
        """Alone, it merges after `every` steps; without `outer`, a merge is a mean."""
        super().__init__(parameters)
        self._team, self._every, self._outer = team, every, outer
        self._merged: list[Tensor] = []
        """The parameters after the last merge, for the outer update."""
        begun = (kept or {}).get(MOMENTUM, []) if outer is not None else []
        self._momentum = [one.to(parameter, copy=True) for one, parameter in zip(begun, self.parameters, strict=False)]
        """Of the outer update; empty before the first one."""
        self._weight = self._open = 0.0
        """What this replica's samples weigh: since the last merge, and those that are not applied yet."""
        self._steps = 0
        """Updates since the last merge."""

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed:
        """The record and the gradient are this replica's own."""
        own = record()
        self._open = own.weight
        return Agreed(own, *treat(numbers_of(self.parameters), *treatment)[:2])

    def update(self, optimizer: Optimizer) -> None:
        """Step; alone, in steps that are no windows, merge if it is time."""
        if self._outer is not None and self._steps == 0:
            self._merged = [parameter.detach().clone() for parameter in self.parameters]
        optimizer.step()
        self._weight += self._open
        self._steps += 1
        if self._steps >= self._every and not self.in_window:
            self.merge()

    @torch.no_grad()
    def barrier(self) -> bool:
        """Give all replicas the weighted mean of their parameters."""
        if self._team.replicas > 1:
            sums = [parameter * self._weight for parameter in self.parameters]
            weight = torch.tensor([self._weight], dtype=torch.float64)
            if not self._team.agree([*sums, weight]):
                return False
            for parameter, total in zip(self.parameters, sums, strict=True):
                parameter.copy_(total / weight.item() if weight else parameter)
        if self._outer is not None:
            self._update_outside(self._outer)
        self._weight, self._steps = 0.0, 0
        return True

    def merge(self, *, saving: bool = False) -> Kept:
        """The last window has merged the parameters; alone, what was done since then is a merge too."""
        if self._steps > 0:
            self.barrier()
        return {MOMENTUM: self._momentum} if saving and self._momentum else {}

    def _update_outside(self, outer: Outer) -> None:
        """Take the way from the last merge to this mean for a gradient, of SGD with Nesterov's momentum."""
        self._momentum = self._momentum or [torch.zeros_like(one) for one in self._merged]
        for parameter, before, momentum in zip(self.parameters, self._merged, self._momentum, strict=True):
            way = before - parameter
            momentum.mul_(outer.momentum).add_(way)
            parameter.copy_(before - outer.lr * (way + outer.momentum * momentum))
