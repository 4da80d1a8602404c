"""Sums of gradients where a replica lies over several workers: each adds its slice up with those of the other replicas.

Only the record is summed over all workers, after every worker has its gradient: when that sum is complete, all have
all that the step needs. So it commits the step, and it alone would have to be handed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.record import Record
from cordee.group.sliced import aligned, is_sliced, like, local_of
from cordee.group.team import Team
from cordee.sync.buckets import grouped
from cordee.sync.gradients import norm_of, shorten
from cordee.sync.seam import Agreed, Recorded, Sync, Treatment
from cordee.sync.stepping import step_on_slices


class SlicedSums(Sync):
    """Sums gradients over the replicas, slice by slice; see `Sync`."""

    def __init__(self, parameters: Iterable[nn.Parameter], team: Team, *, bucket_mb: float) -> None:
        """Nothing is sent before a step commits."""
        super().__init__(parameters)
        self._team, self._bucket_mb = team, bucket_mb

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed | None:
        """Sum gradients over the replicas, then records over all workers; None if the step has to be done again."""
        team, own = self._team, record()
        gradients = [p.grad if p.grad is None else local_of(aligned(p.grad, p)) for p in self.parameters]
        present = torch.tensor([made is not None for made in gradients], dtype=torch.float32)
        complete = team.sums.sum(present).wait() and not void
        sums: list[Tensor] = []
        for flat, pairs in self._flat(gradients) if complete else ():
            complete = team.sums.sum(flat).wait() and complete
            for parameter, view in pairs:
                parameter.grad = like(parameter, view)
            sums.append(flat)
        norm = norm_of(self._counted()).to("cpu", torch.float64).square()
        complete = team.inside.sum(norm).wait() and complete
        numbers = torch.tensor(self._spoken(own).numbers(), dtype=torch.float64)
        if not team.settle([team.world.sum(numbers)] if complete else [], [numbers], void=not complete):
            return None
        for parameter, count in zip(self.parameters, present.tolist(), strict=True):
            if count == 0.0:
                parameter.grad = None
        if treatment.clip is not None and norm.isfinite():
            shorten(sums, norm.sqrt(), treatment.clip)
        return Agreed(Record.summed(numbers.tolist()), norm=norm.sqrt())

    def update(self, optimizer: Optimizer) -> None:
        """Let the optimizer step, on slices."""
        step_on_slices(optimizer)

    def _flat(self, gradients: list[Tensor | None]) -> Iterator[tuple[Tensor, list[tuple[nn.Parameter, Tensor]]]]:
        """Gradients side by side, and each parameter's window of them; zeros where this replica has none."""
        of = {id(parameter): made for parameter, made in zip(self.parameters, gradients, strict=True)}
        for group in grouped(self.parameters, self._bucket_mb):
            shapes = [local_of(parameter) for parameter in group]
            parts = [
                local.new_zeros(local.shape) if (made := of[id(parameter)]) is None else made
                for parameter, local in zip(group, shapes, strict=True)
            ]
            flat = torch.cat([part.reshape(-1) for part in parts])
            windows = torch.split(flat, [local.numel() for local in shapes])
            yield flat, [(p, window.view(local.shape)) for p, window, local in zip(group, windows, shapes, strict=True)]

    def _counted(self) -> list[Tensor]:
        """The gradients that count for the norm here: slices, and on the first slice what all have."""
        first = self._team.inside.rank == 0
        given = [(parameter, parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        return [local_of(gradient) for parameter, gradient in given if first or is_sliced(parameter)]

    def _spoken(self, own: Record) -> Record:
        """What this worker adds to the record: the first slice counts for its replica, wishes count everywhere."""
        if self._team.inside.rank == 0:
            return own
        return own._replace(loss=0.0, weight=0.0, news=0.0, samples=0.0, digest=0)
