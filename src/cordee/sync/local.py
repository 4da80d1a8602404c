"""Local steps: every replica updates by what it computes, and all merge their parameters every few steps.

The steps between two merges are a window: which replica computes which part of them is decided as they go, so a slow
replica computes fewer. At a merge all replicas go the mean of the ways that they have gone since the merge before, each
weighted by what it has computed; states of optimizers stay each replica's own. With one step per merge and plain SGD
that is the update of all-reduce. Otherwise it is not what one process would have trained: such a plan is statistical.
The learning rate of Adam and its kin is higher within a window, so that the mean goes as far as one process does
(`lift_of` in `cordee.core.window`). With an outer update, the mean way is not gone as it is: it is a gradient, of SGD
with momentum.

A codec makes the ways smaller on the wire; what it leaves out goes with the next merge.

What a lost replica computed since the last merge is lost with it: the others compute those parts again before they
merge. One replica alone has no windows: it goes on step by step, and only outer updates are left of its merges.

Memory: a copy of the parameters, and during a merge another one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.sync.buckets import Bucket, grouped, make_bucket
from cordee.sync.gradients import treat
from cordee.sync.lossy import Exact
from cordee.sync.seam import Agreed, Kept, Recorded, Sync, Treatment
from cordee.sync.sparse import numbers_of

MOMENTUM = "outer momentum"
"""The name of what is kept for the outer update."""
BUCKET_MB = 4.0
"""So much of the parameters travels together in a merge: what is encoded next overlaps with what is sent."""


class Outer(NamedTuple):
    """How the mean of the replicas is applied, as in DiLoCo (Douillard and others, 2023)."""

    lr: float
    momentum: float


@contextmanager
def lifted(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """In here learning rates are so many times higher, if the optimizer divides gradients by their size.

    Those of PyTorch that do so have a setting `eps`. Weight decay that is not part of the gradient stays what it is.
    """
    groups = optimizer.param_groups if "eps" in optimizer.defaults and factor != 1.0 else []
    before = [(group["lr"], group.get("weight_decay")) for group in groups]
    for group in groups:
        group["lr"] = group["lr"] * factor
        if group.get("decoupled_weight_decay"):
            group["weight_decay"] = group["weight_decay"] / factor
    try:
        yield
    finally:
        for group, (rate, decay) in zip(groups, before, strict=True):
            group["lr"] = rate
            if decay is not None:
                group["weight_decay"] = decay


class LocalSteps(Sync):
    """Updates locally, and merges at the end of each window; see `Sync`."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        adds: Exact,
        *,
        every: int,
        lifts: bool = True,
        outer: Outer | None = None,
        kept: Kept | None = None,
    ) -> None:
        """Alone, it merges after `every` steps; without `outer`, a merge is a mean, which `adds` adds up.

        `lifts`: the learning rate of Adam and its kin is higher in local steps; see `lift_of`.
        """
        super().__init__(parameters)
        self._lifts = lifts
        self._team, self._adds, self._every, self._outer = adds.team, adds, every, outer
        self._merged: list[Tensor] = []
        """The parameters after the last merge."""
        begun = (kept or {}).get(MOMENTUM, []) if outer is not None else []
        self._momentum = [one.to(parameter, copy=True) for one, parameter in zip(begun, self.parameters, strict=False)]
        """Of the outer update; empty before the first one."""
        self._weight = self._open = 0.0
        """What this replica's samples weigh: since the last merge, and those that are not applied yet."""
        self._steps = 0
        """Updates since the last merge."""
        self._sent, self._sending_s = 0, 0.0
        """Of the last merge: bytes, and how long it took to encode, send and decode them."""

    def link(self, codec_s: float) -> float:
        """Bytes per second that the last merge sent, if its codec took so long."""
        return self._sent / max(self._sending_s - codec_s, 1e-4)

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed:
        """The record and the gradient are this replica's own."""
        own = record()
        self._open = own.weight
        return Agreed(own, *treat(numbers_of(self.parameters), *treatment)[:2])

    def update(self, optimizer: Optimizer) -> None:
        """Step; alone, in steps that are no windows, merge if it is time."""
        if self._steps == 0 and (self.in_hand is not None or self._outer is not None):
            self._merged = [parameter.detach().clone() for parameter in self.parameters]
        with lifted(optimizer, self.in_hand.lift if self.in_hand is not None and self._lifts else 1.0):
            optimizer.step()
        self._weight += self._open
        self._steps += 1
        if self._steps >= self._every and self.in_hand is None:
            self.merge()

    @torch.no_grad()
    def barrier(self) -> bool:
        """Let all replicas go the mean of their ways."""
        ways: list[Tensor] = []
        if self._team.replicas > 1:
            buckets = [make_bucket(group, 0, 1) for group in grouped(self.parameters, BUCKET_MB)]
            if not self._add_up(buckets):
                return False
            self._adds.commit()
            found = {p: way for one in buckets for p, way in zip(one.parameters, one.views[0], strict=True)}
            ways = [found[parameter] for parameter in self.parameters]
        elif self._outer is not None:
            ways = [now - before for now, before in zip(self.parameters, self._merged, strict=True)]
        if self._outer is not None:
            ways = self._outside(self._outer, ways)
        for parameter, before, way in zip(self.parameters, self._merged, ways, strict=False):
            torch.add(before, way, out=parameter)
        self._weight, self._steps = 0.0, 0
        return True

    def merge(self, *, saving: bool = False) -> Kept:
        """The last window has merged the parameters; alone, what was done since then is a merge too."""
        if self._steps > 0:
            self.barrier()
        if not saving:
            return {}
        return self._adds.merge() | ({MOMENTUM: self._momentum} if self._momentum else {})

    def _add_up(self, buckets: list[Bucket]) -> bool:
        """Fill them with the mean of the ways of all replicas, as one agreement; False if one was lost before it.

        The last sum is begun only where all others have ended: when it has ended too, all replicas have all of them.
        """
        team, weight = self._team, torch.tensor([self._weight], dtype=torch.float64)
        complete = team.sums.sum(weight).wait()
        share = self._weight / weight.item() if complete and weight else 0.0
        sent, began = team.meter.bytes_sent, time.perf_counter()
        before, handles = dict(zip(self.parameters, self._merged, strict=True)), []
        self._adds.begin()
        for bucket in buckets if complete else ():
            for parameter, way in zip(bucket.parameters, bucket.views[0], strict=True):
                torch.sub(parameter, before[parameter], out=way).mul_(share)
            handles.append(self._adds.sum(bucket, 0))
        ended = [one.wait() for one in handles]  # all of them, whatever the first says
        complete = complete and all(ended)
        self._sent, self._sending_s = team.meter.bytes_sent - sent, time.perf_counter() - began
        commits = [team.sums.sum(torch.zeros(1))] if complete else []
        return team.settle(commits, [bucket.flats[0] for bucket in buckets], void=not complete)

    def _outside(self, outer: Outer, ways: list[Tensor]) -> list[Tensor]:
        """Take the mean way for a gradient, of SGD with Nesterov's momentum: the way that it makes of it."""
        self._momentum = self._momentum or [torch.zeros_like(one) for one in ways]
        for one, way in zip(self._momentum, ways, strict=True):  # of the gradient, against the way
            one.mul_(outer.momentum).sub_(way)
        return [outer.lr * (way - outer.momentum * one) for way, one in zip(ways, self._momentum, strict=True)]
