"""Buffers of replicas that went their own ways for some steps: made the same on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from cordee.group.team import Team

Thing = TypeVar("Thing")


def some_replica_has(changed: Callable[[Thing], bool], things: Sequence[Thing], team: Team) -> list[Thing]:
    """Of `things`, which all replicas have in the same order, those that at least one of them has changed."""
    while things and team.shares > 1:
        counts = torch.tensor([float(changed(one)) for one in things])
        if team.agree([counts]):
            return [one for one, count in zip(things, counts.tolist(), strict=True) if count]
    return list(things)


@torch.no_grad()
def average(buffers: Sequence[Tensor], seen: int, team: Team) -> None:
    """Give all replicas the mean of those that are floating-point, weighted by the samples that each has `seen`."""
    floating = [buffer for buffer in buffers if buffer.is_floating_point() or buffer.is_complex()]
    while (floating or team.stages.size > 1) and team.shares > 1:  # another stage may have some
        weight = torch.tensor([float(seen)], dtype=torch.float64)
        sums = [buffer.to(torch.complex128 if buffer.is_complex() else torch.double) * seen for buffer in floating]
        if _agree([weight, *sums], team):
            for buffer, total in zip(floating, sums, strict=True):
                buffer.copy_(total / weight.item() if weight else buffer)  # 0: nothing was trained since
            return


@torch.no_grad()
def add_counts(buffers: Sequence[tuple[Tensor, Tensor, int]], team: Team) -> None:
    """Add up what replicas have added to whole numbers: a buffer, what it was before, and the parts of a step.

    A layer that counts batches has counted each part of a step as one: with `parts` above 0, so many count once. A
    flag is set if some replica has set it.
    """
    whole = [one for one in buffers if not (one[0].is_floating_point() or one[0].is_complex())]
    while whole and team.shares > 1:
        added = [now.to(torch.double) - before.to(torch.double) for now, before, _ in whole]
        if not team.agree(added):
            continue
        for (now, before, parts), total in zip(whole, added, strict=True):
            counted = before.to(torch.double) + total / max(parts, 1)
            now.copy_(counted.clamp(0, 1) if now.dtype == torch.bool else counted.round())
        return


def _agree(tensors: Sequence[Tensor], team: Team) -> bool:
    """Add these up over the shares, stage by stage and slice by slice, as one agreement; all workers call this."""
    if not team.sliced:
        return team.agree(tensors)
    ended = [one.wait() for one in [team.layers.sum(tensor) for tensor in tensors]]
    complete = all(ended)
    # Behind it all workers have their sums: when this one is complete, nothing is left to hand over.
    return team.settle([team.world.sum(torch.zeros(1))] if complete else [], (), void=not complete)
