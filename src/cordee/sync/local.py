"""Local steps: every replica updates by what it computes, and all merge their parameters every few steps.

The steps between two merges are a window: which replica computes which part of them is decided as they go, so a slow
replica computes fewer. At a merge all replicas go the mean of the ways that they have gone since the merge before, each
weighted by what it has computed; states of optimizers stay each replica's own. With one step per merge and plain SGD
that is the update of all-reduce. Otherwise it is not what one process would have trained: such a plan is statistical.
The learning rate of Adam and its kin is higher within a window, so that the mean goes as far as one process does
(`lift_of` in `cordee.core.window`). With an outer update, the mean way is not gone as it is: it is a gradient, of SGD
with momentum.

A codec makes the ways smaller on the wire; what it leaves out goes with the next merge.

A merge may be left `behind`: the ways of a window travel while the next one is computed. At its end each replica goes
half of the distance to where that merge, and its own way of the last window, would lead. Not all of it: in the
meantime the gradient has corrected much of what was wrong with its own way, and to correct that twice makes replicas
swing apart (`benchmarks/ways.py`). The ways themselves are merged whole, and each once. A merge that is waited for
makes all replicas equal again, over all that they have done since they last were on the way together.

What a lost replica computed since the last merge is lost with it, also if its ways were under way: the others compute
those parts again, keep their own ways, and wait for the next merge, which is over all of them. One replica alone has no
windows: it goes on step by step, and only outer updates are left of its merges.

Memory: a copy of the parameters, and during a merge another one. While a merge is left behind four copies: where all
replicas were last, where this one was at the end of the window, its way, and what travels. After it, what it came to is
kept for a peer that may have missed it, until the next agreement.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.errors import UsageError
from cordee.group.comm import Handle
from cordee.group.team import Team
from cordee.sync.buckets import Bucket, grouped, make_bucket
from cordee.sync.gradients import treat
from cordee.sync.lossy import Exact
from cordee.sync.seam import Agreed, Kept, Recorded, Sync, Treatment
from cordee.sync.sparse import numbers_of

MOMENTUM = "outer momentum"
"""The name of what is kept for the outer update."""
BUCKET_MB = 4.0
"""So much of the parameters travels together in a merge: what is encoded next overlaps with what is sent."""
PULL = 0.5
"""How far a replica goes towards a merge that was left behind."""


class Outer(NamedTuple):
    """How the mean of the replicas is applied, as in DiLoCo (Douillard and others, 2023)."""

    lr: float
    momentum: float


@dataclass
class Left:
    """What a window has come to on this replica, as long as its merge is under way."""

    points: list[Tensor]
    """The parameters at its end, where the next one begins."""
    ways: list[Tensor]
    """How far this replica went in it."""
    weight: float
    """What this replica's samples of the window weigh."""
    share: float
    """The part of it in what all replicas' samples weigh."""
    generation: int
    """In which all replicas have come to its end; in a later one nothing of it arrives."""
    buckets: list[Bucket] = field(default_factory=list)
    """The ways of all replicas, added up when the handles have ended; none before they are sent."""
    handles: list[Handle] = field(default_factory=list)

    def arrives(self, team: Team) -> bool:
        """Whether it was sent, and no worker was lost since then, as far as this one knows."""
        return bool(self.handles) and self.generation == team.membership.generation

    def wait(self) -> bool:
        """For all sums, whatever the first says; False if a replica was lost."""
        ended = [one.wait() for one in self.handles]
        return all(ended)


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
    """Updates locally, and merges at the end of each window, or behind the next one; see `Sync`."""

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
        """The parameters after the last merge; while one is left behind, without this replica's own ways since then."""
        self._left: Left | None = None
        """The window before, if its merge was left behind."""
        begun = (kept or {}).get(MOMENTUM, []) if outer is not None else []
        self._momentum = [one.to(parameter, copy=True) for one, parameter in zip(begun, self.parameters, strict=False)]
        """Of the outer update; empty before the first one."""
        self._weight = self._open = 0.0
        """What this replica's samples weigh: since the last window's end, and those that are not applied yet."""
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
        self._team.meter.look()  # what travels meanwhile was hidden until here
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

    @property
    def under_way(self) -> bool:
        """Whether the last window's merge was left behind."""
        return self._left is not None

    @torch.no_grad()
    def barrier(self) -> bool:
        """Let all replicas go the mean of their ways; `behind`: of the window before, and leave that of this one.

        If what was left of the window before does not arrive, all wait for the mean of both.
        """
        if self.behind and self._team.replicas > 1 and (self._left is None or self._left.arrives(self._team)):
            return self._leave()
        return self._meet()

    @torch.no_grad()
    def begin_merge(self) -> None:
        """Send this replica's way of the last window, unless workers have regrouped since: some may not send theirs."""
        left = self._left
        if left is None or left.generation != self._team.membership.generation:
            return
        left.buckets = self._make_buckets()
        left.handles = self._send(left.buckets, left.ways, left.share)

    def merge(self, *, saving: bool = False) -> Kept:
        """The last window has merged the parameters; alone, what was done since then is a merge too."""
        if self._left is not None:
            raise UsageError(
                "the model was to be measured or saved while a merge was under way: with merge=behind, workers are "
                "equal only at the end of the training, and where the job evaluates or saves. Use merge=wait"
            )
        if self._steps > 0:
            self.barrier()
        if not saving:
            return {}
        return self._adds.merge() | ({MOMENTUM: self._momentum} if self._momentum else {})

    def _leave(self) -> bool:
        """Agree on what the window before came to, and on how much all replicas have computed in this one.

        That sum is begun only where all others have ended: when it has ended too, all replicas have all of them.
        """
        team, left = self._team, self._left
        generation, weight = team.membership.generation, torch.tensor([self._weight], dtype=torch.float64)
        complete = left is None or left.wait()
        commits = [team.sums.sum(weight)] if complete else []
        came = [bucket.flats[0] for bucket in left.buckets] if left is not None else []
        if not team.settle(commits, [*came, weight], void=not complete):
            return False
        begun = self._merged if left is None else left.points
        ways = [now - then for now, then in zip(self.parameters, begun, strict=True)]
        if left is not None:
            self._adds.commit()
            means = self._outside(self._ways_in(left.buckets))
            for parameter, before, mean, way in zip(self.parameters, self._merged, means, ways, strict=True):
                parameter.lerp_(before.add_(mean) + way, PULL)
        points = [parameter.detach().clone() for parameter in self.parameters]
        self._left = Left(points, ways, self._weight, self._weight / weight.item() if weight else 0.0, generation)
        self._weight = 0.0
        return True

    def _meet(self) -> bool:
        """Wait until all replicas are equal: they go the mean of all their ways since the last merge."""
        ways: list[Tensor] = []
        if self._team.replicas > 1:
            buckets = self._make_buckets()
            if not self._add_up(buckets):
                return False
            self._adds.commit()
            ways = self._ways_in(buckets)
        elif self._outer is not None or self._left is not None:
            ways = self._own_ways()
        for parameter, before, way in zip(self.parameters, self._merged, self._outside(ways), strict=False):
            torch.add(before, way, out=parameter)
        self._left, self._weight, self._steps = None, 0.0, 0
        return True

    def _make_buckets(self) -> list[Bucket]:
        return [make_bucket(group, 0, 1) for group in grouped(self.parameters, BUCKET_MB)]

    def _ways_in(self, buckets: list[Bucket]) -> list[Tensor]:
        """What lies in them for each parameter."""
        found = {p: way for one in buckets for p, way in zip(one.parameters, one.views[0], strict=True)}
        return [found[parameter] for parameter in self.parameters]

    def _own_ways(self) -> list[Tensor]:
        """How far this replica went since the last merge that counts."""
        if (left := self._left) is None:
            return [now - before for now, before in zip(self.parameters, self._merged, strict=True)]
        begun = zip(self.parameters, left.points, left.ways, strict=True)
        return [now - then + way for now, then, way in begun]

    def _send(self, buckets: list[Bucket], ways: Sequence[Tensor], share: float) -> list[Handle]:
        """Begin to add up such ways of all replicas, of which this one's count for a `share`."""
        own = dict(zip(self.parameters, ways, strict=True))
        self._adds.begin()
        handles = []
        for bucket in buckets:
            for parameter, way in zip(bucket.parameters, bucket.views[0], strict=True):
                torch.mul(own[parameter], share, out=way)
            handles.append(self._adds.sum(bucket, 0))
        return handles

    def _add_up(self, buckets: list[Bucket]) -> bool:
        """Fill them with the mean of the ways of all replicas, as one agreement; False if one was lost before it.

        The last sum is begun only where all others have ended: when it has ended too, all replicas have all of them.
        """
        team, left = self._team, self._left
        own = self._weight + (left.weight if left is not None else 0.0)
        weight = torch.tensor([own], dtype=torch.float64)
        if left is not None and left.arrives(team):  # what travels is not used, but holds up what follows
            left.wait()
            left.buckets, left.handles = [], []
        complete = team.sums.sum(weight).wait()
        share = own / weight.item() if complete and weight else 0.0
        sent, began = team.meter.bytes_sent, time.perf_counter()
        ended = [one.wait() for one in (self._send(buckets, self._own_ways(), share) if complete else ())]
        complete = complete and all(ended)
        self._sent, self._sending_s = team.meter.bytes_sent - sent, time.perf_counter() - began
        commits = [team.sums.sum(torch.zeros(1))] if complete else []
        return team.settle(commits, [bucket.flats[0] for bucket in buckets], void=not complete)

    def _outside(self, ways: list[Tensor]) -> list[Tensor]:
        """With an outer update, the mean way is a gradient, of SGD with Nesterov's momentum: the way that it makes."""
        if (outer := self._outer) is None:
            return ways
        self._momentum = self._momentum or [torch.zeros_like(one) for one in ways]
        for one, way in zip(self._momentum, ways, strict=True):  # of the gradient, against the way
            one.mul_(outer.momentum).sub_(way)
        return [outer.lr * (way - outer.momentum * one) for way, one in zip(ways, self._momentum, strict=True)]
