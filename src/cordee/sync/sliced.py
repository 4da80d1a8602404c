"""Sums of gradients where a replica lies over several workers: each adds its part up with those of the other replicas.

Within a sharded replica gradients are added up in the backward pass, but for those of parameters that all shards hold.

Only the record is summed over all workers, after every worker has its gradient: when that sum is complete, all have
all that the step needs. So it commits the step, and it alone would have to be handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.events import HeldEvent
from cordee.core.record import Record
from cordee.group.comm import Comm
from cordee.group.sliced import aligned, is_sliced, like, local_of
from cordee.group.team import Team
from cordee.sync.buckets import grouped
from cordee.sync.gradients import norm_of, shorten
from cordee.sync.seam import Agreed, Recorded, Sync, Treatment
from cordee.sync.stepping import step_on_slices


class SlicedSums(Sync):
    """Sums gradients over the replicas, slice by slice; see `Sync`."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        team: Team,
        *,
        bucket_mb: float,
        counts: Callable[[nn.Parameter], bool],
    ) -> None:
        """Nothing is sent before a step commits; `counts`: see `Split.counts`."""
        super().__init__(parameters)
        self._team, self._bucket_mb, self._counts = team, bucket_mb, counts
        self._told = False
        """Whether the record says what this worker holds."""

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed | None:
        """Sum gradients over the replicas, then records over all workers; None if the step has to be done again."""
        team, own = self._team, record()
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = aligned(parameter.grad, parameter)
        complete = not void and self._add_up_shards()
        if complete and team.replicas > 1:
            complete = self._add_up(team.sums, self.parameters)
        norm = norm_of(self._counted()).to("cpu", torch.float64).square() * (team.replica == 0)
        numbers = torch.tensor([*self._spoken(own).numbers(), norm], dtype=torch.float64)
        if not team.settle([team.world.sum(numbers)] if complete else [], [numbers], void=not complete):
            return None
        norm = numbers[-1].sqrt()
        if treatment.clip is not None and norm.isfinite():
            shorten([local_of(p.grad) for p in self.parameters if p.grad is not None], norm, treatment.clip)
        return Agreed(Record.summed(numbers[:-1].tolist()), norm=norm)

    def update(self, optimizer: Optimizer) -> None:
        """Let the optimizer step; the first time, say how many bytes of its state lie on this worker."""
        step_on_slices(optimizer)
        if not self._told:
            self._told = True
            gradients = [one.grad for one in self.parameters if one.grad is not None]
            states = [one for each in self.parameters for one in optimizer.state[each].values()]
            kinds = (self.parameters, gradients, [one for one in states if isinstance(one, Tensor)])
            held = [sum(local_of(one).nbytes for one in kind) for kind in kinds]
            self._team.channel.post(HeldEvent(self._team.membership.worker, *held))

    def _add_up_shards(self) -> bool:
        """Over the shards of this replica, what they hold whole; False if a worker was lost."""
        if self._team.lines.shape.shards == 1:
            return True
        whole = [parameter for parameter in self.parameters if not is_sliced(parameter, "shard")]
        return not whole or self._add_up(self._team.lines.shards, whole)

    def _add_up(self, comm: Comm, parameters: list[nn.Parameter]) -> bool:
        """The gradients of these over the members of `comm`; None where none has any."""
        present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32)
        complete = comm.sum(present).wait()
        for group in grouped(parameters, self._bucket_mb) if complete else ():
            held = [local_of(parameter) for parameter in group]
            parts = [
                one.new_zeros(one.shape) if p.grad is None else local_of(p.grad)
                for p, one in zip(group, held, strict=True)
            ]
            flat = torch.cat([part.reshape(-1) for part in parts])
            complete = comm.sum(flat).wait() and complete
            for parameter, window in zip(group, torch.split(flat, [one.numel() for one in held]), strict=True):
                one = local_of(parameter)
                part = window.view(one.shape)
                if part.stride() != one.stride():  # with channels last
                    part = torch.empty_like(one).copy_(part)
                parameter.grad = like(parameter, part)
        for parameter, count in zip(parameters, present.tolist(), strict=True):
            if count == 0.0:
                parameter.grad = None
        return complete

    def _counted(self) -> list[Tensor]:
        """The gradients that count for the norm here; of what all shards hold, those of the first."""
        team = self._team
        first = team.lines.mesh.along("shard", team.membership.worker)[0] == team.membership.worker
        return [
            local_of(parameter.grad)
            for parameter in self.parameters
            if parameter.grad is not None
            if self._counts(parameter) and (first or is_sliced(parameter, "shard"))
        ]

    def _spoken(self, own: Record) -> Record:
        """What this worker adds to the record: the first one counts for its share, wishes and news of all do.

        The last stage has the loss: of its slices, the first counts.
        """
        team = self._team
        first, last = team.stages.rank == 0, team.stages.rank == team.stages.size - 1
        own = own if last and team.slices.rank == 0 else own._replace(loss=0.0)
        return own if first and team.slices.rank == 0 else own._replace(weight=0.0, samples=0.0, digest=0)
