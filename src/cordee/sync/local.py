"""Local steps: every replica updates by its own share, and all average their parameters every few steps.

A step commits by a sum of its record alone, which is some hundred bytes. A merge is the mean of the replicas'
parameters, each weighted by what it has computed since the merge before; states of optimizers stay each replica's own.
With one step per merge and plain SGD that is the update of all-reduce. Otherwise it is not what one process would have
trained: such a plan is statistical. With an outer update, the mean is not taken as it is: the way to it from the merge
before is a gradient, of SGD with momentum. A measurement or a checkpoint between two merges is a merge too.

What a lost replica computed since the last merge is lost with it; those samples are counted as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.record import Record
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
    """Updates locally, and merges every `every` steps; see `Sync`."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        team: Team,
        *,
        every: int,
        on_lost: Callable[[int], None],
        outer: Outer | None = None,
        kept: Kept | None = None,
    ) -> None:
        """`on_lost` is told the number of samples that a lost replica took with it; without `outer`, a mean is all."""
        super().__init__(parameters)
        self._team, self._every, self._on_lost, self._outer = team, every, on_lost, outer
        self._merged: list[Tensor] = []
        """The parameters after the last merge, for the outer update."""
        begun = (kept or {}).get(MOMENTUM, []) if outer is not None else []
        self._momentum = [one.to(parameter, copy=True) for one, parameter in zip(begun, self.parameters, strict=False)]
        """Of the outer update; empty before the first one."""
        self._weight = self._samples = self._of_all = 0.0
        """Since the last merge: what this replica's samples weigh, how many they are, and how many all replicas had."""
        self._open = 0.0, 0.0, 0.0
        """The same of the step that has committed and is not applied yet."""
        self._steps = 0
        """Steps since the last merge."""

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed | None:
        """Add up the records; the gradient is this replica's own."""
        own = record()
        numbers = torch.tensor(own.numbers(), dtype=torch.float64)
        handles = [self._team.sums.sum(numbers)] if self._team.replicas > 1 else []
        if not self._team.settle(handles, [numbers], void=void):
            return None
        summed = Record.summed(numbers.tolist())
        self._open = own.weight, own.samples, summed.samples
        return Agreed(summed, *treat(numbers_of(self.parameters), *treatment)[:2])

    def update(self, optimizer: Optimizer) -> None:
        """Step, and merge if it is time."""
        if self._outer is not None and self._steps == 0:
            self._merged = [parameter.detach().clone() for parameter in self.parameters]
        optimizer.step()
        weight, samples, of_all = self._open
        self._weight, self._samples, self._of_all = (
            self._weight + weight,
            self._samples + samples,
            self._of_all + of_all,
        )
        self._steps += 1
        if self._steps >= self._every:
            self.merge()

    @torch.no_grad()
    def merge(self, *, saving: bool = False) -> Kept:
        """Give all replicas the weighted mean of their parameters; all of them call this after the same step."""
        if self._steps > 0:
            self._average()
            if self._outer is not None:
                self._update_outside(self._outer)
        return {MOMENTUM: self._momentum} if saving and self._momentum else {}

    def _average(self) -> None:
        self._steps = 0
        samples = self._samples
        while self._team.replicas > 1:
            sums = [parameter * self._weight for parameter in self.parameters]
            counts = torch.tensor([self._weight, self._samples], dtype=torch.float64)
            if not self._team.agree([*sums, counts]):
                continue  # a replica was lost: without it, once more
            weight, samples = counts.tolist()
            for parameter, total in zip(self.parameters, sums, strict=True):
                parameter.copy_(total / weight if weight else parameter)
            break
        if (lost := round(self._of_all - samples)) > 0:
            self._on_lost(lost)
        self._weight = self._samples = self._of_all = 0.0

    def _update_outside(self, outer: Outer) -> None:
        """Take the way from the last merge to this mean for a gradient, of SGD with Nesterov's momentum."""
        self._momentum = self._momentum or [torch.zeros_like(one) for one in self._merged]
        for parameter, before, momentum in zip(self.parameters, self._merged, self._momentum, strict=True):
            way = before - parameter
            momentum.mul_(outer.momentum).add_(way)
            parameter.copy_(before - outer.lr * (way + outer.momentum * momentum))
