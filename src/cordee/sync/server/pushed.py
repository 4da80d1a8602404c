"""Local steps whose merges are made by parameter servers: workers push how far they have gone, servers average.

The way of a replica since the last merge, weighted by its share of the samples, is pushed as a gradient. The servers
hold the merged parameters, and their optimizer is SGD that climbs: with a learning rate of 1 it goes the mean of all
ways. With an outer update it has the outer learning rate and momentum. The reply to a push carries the merged
parameters. The job's optimizer stays on the workers.

A merge is a step of `mode=sync`: all servers and their backups have the sum of all ways, or it does not count. If a
worker is lost and the sum is complete all the same, it counts. Otherwise the others do again what is lost with it.

Memory of a worker: a copy of the parameters, and during a merge the way, as gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import SGD

from cordee.core.record import SIZE, Record
from cordee.sync.gradients import drop
from cordee.sync.local import MOMENTUM, LocalSteps, Outer
from cordee.sync.lossy import Exact
from cordee.sync.seam import Kept, Treatment
from cordee.sync.server.served import Served

MEAN = Outer(1.0, 0.0)
"""The outer update that goes the mean way as it is."""
NOTHING = Record.summed([0.0] * SIZE)
"""Of a merge: what its steps came to is agreed on with the coordinator."""


def outer_optimizer(parameters: Sequence[nn.Parameter], outer: Outer, kept: Kept) -> SGD:
    """What servers apply ways with; it has the momentum that was `kept`, if it has any."""
    made = SGD(parameters, lr=outer.lr, momentum=outer.momentum, nesterov=outer.momentum > 0.0, maximize=True)
    for parameter, one in zip(parameters, kept.get(MOMENTUM, []) if outer.momentum else [], strict=False):
        made.state[parameter]["momentum_buffer"] = one.to(parameter, copy=True)
    return made


class PushedSteps(LocalSteps):
    """Updates locally, and lets parameter servers merge at the end of each window; see `Sync`."""

    def __init__(self, served: Served, outside: SGD, adds: Exact, *, every: int, lifts: bool) -> None:
        """`served` was made for the optimizer `outside`; `adds` is its packing, or the team's sums."""
        super().__init__(served.parameters, adds, every=every, lifts=lifts, outer=MEAN)
        self._served, self._on_servers = served, outside

    @torch.no_grad()
    def barrier(self) -> bool:
        """Push the way since the last merge, and take over where the servers have gone by those of all."""
        weight = torch.tensor([self._weight], dtype=torch.float64)
        complete = self._team.replicas == 1 or self._team.sums.sum(weight).wait()
        share = self._weight / weight.item() if complete and weight else 0.0
        self._swap()
        for parameter, gone in zip(self.parameters, self._merged, strict=True):
            parameter.grad = torch.sub(gone, parameter).mul_(share)
        agreed = self._served.commit(lambda: NOTHING, void=not complete, treatment=Treatment())
        counts = agreed is not None or self._served.conclude()
        if counts:
            self._served.update(self._on_servers)
            self._on_servers.state.clear()  # that of a checkpoint: the servers have it
            self._weight, self._steps = 0.0, 0
        else:
            self._swap()
        drop(self.parameters)
        return counts

    def merge(self, *, saving: bool = False) -> Kept:
        """Alone, what was done since the last merge is pushed; to be saved, the first worker gets the momentum."""
        super().merge()
        kept = self._served.merge(saving=saving)
        state = self._on_servers.state
        if saving and self.parameters and "momentum_buffer" in state.get(self.parameters[0], {}):
            kept[MOMENTUM] = [state[parameter]["momentum_buffer"] for parameter in self.parameters]
        return kept

    def close(self) -> None:
        """Hang up."""
        self._served.close()

    def _swap(self) -> None:
        """Exchange the parameters and those of the last merge, which are what the servers hold."""
        for parameter, before in zip(self.parameters, self._merged, strict=True):
            gone = parameter.clone()
            parameter.copy_(before)
            before.copy_(gone)
