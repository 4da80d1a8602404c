"""A replica's share of a step, as its split computes it: at once, or in micro-batches that go through stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from cordee.feed.batch import Batch, named_tensors
from cordee.feed.feeder import Weigh
from cordee.feed.permute import random_bits
from cordee.feed.source import map_tensors
from cordee.split.seam import Micro
from cordee.train.compiling import Loss

if TYPE_CHECKING:
    from cordee.train.loops import Loop
    from cordee.train.stepper import Stepper


def cut_rows(batch: Batch, most: int) -> list[Batch]:
    """Consecutive samples in at most so many batches whose sizes differ by one; a borrowed sample is in none."""
    count, samples = min(most, len(batch)), len(batch)
    if batch.borrowed:
        return []
    return [_rows(batch, samples * place // count, samples * (place + 1) // count) for place in range(count)]


def _rows(batch: Batch, start: int, stop: int) -> Batch:
    if (start, stop) == (0, len(batch)):
        return batch
    whole = len(batch)

    def rows(tensor: Tensor) -> Tensor:
        return tensor[start:stop] if tensor.dim() and len(tensor) == whole else tensor

    part = Batch(batch.ids[start:stop], map_tensors(rows, batch.fields))
    part.seed, part.epoch, part.step = batch.seed, batch.epoch, batch.step
    part.positions = batch.positions[start:stop]
    return part


def kind_of(batch: Batch, use: str) -> tuple[object, ...]:
    """What batches have in common that give messages of the same shapes; `use`: training, say."""
    return (use, *((name, tuple(one.shape), one.dtype) for name, one in named_tensors(batch.fields)))


def begin_passes(stepper: Stepper, loop: Loop) -> float | None:
    """Passes of my share begin: what the global batch weighs; None if a worker was lost."""
    stepper.loops.train()
    loop.guard.backward(stepper.reducers.all_parameters() if loop.guard.looks else (), stepper.models)
    weight = None if stepper.state.void else loop.weight.total()
    stepper.state.void |= weight is None
    loop.backwards += 1
    if loop.pieces is not None:
        stepper.reducers.pieces = loop.pieces
    loop.open = True
    return weight


class Computed:
    """The share of the open step; see `split/seam.py`, `Share`."""

    def __init__(self, stepper: Stepper, batch: Batch, loss_of: Loss, weigh: Weigh | None) -> None:
        """Nothing is computed yet; `weigh` is the job's."""
        self._stepper, self._batch, self._loss_of, self._weigh = stepper, batch, loss_of, weigh
        self._weights: list[float] = []

    def compute(self) -> None:
        """All of it at once."""
        self._stepper.backward(self._loss_of(self._batch))

    def micros(self, most: int) -> Sequence[Micro]:
        """Each weighs as its samples do in the global batch; of a share that weighs nothing, there are none."""
        stepper, batch = self._stepper, self._batch
        parts = cut_rows(batch, most)
        if self._weigh is not None and len(parts) > 1:
            for part in parts:
                part.weight = float(self._weigh(part))
        self._weights = [part.weight for part in parts]
        whole = begin_passes(stepper, stepper.loops.current()[0])
        if not whole or not any(self._weights):
            return []
        factors = [weight / whole for weight in self._weights]
        draws = random_bits(len(parts), "micro", stepper.seed, batch.epoch, batch.step, stepper.team.share)
        return [
            Micro(partial(self._loss_of, part), factor, kind_of(part, "training"), draw >> 1)
            for part, factor, draw in zip(parts, factors, draws, strict=True)
        ]

    def done(self, losses: Sequence[Tensor] | None) -> None:
        """Note the losses, each by its weight; without them the step is void."""
        loop, _ = self._stepper.loops.current()
        self._stepper.state.void |= losses is None
        for loss, weight in zip(losses or (), self._weights, strict=False):
            if weight:
                loop.losses.add(loss, weight)
        if loop.guard.looks:
            loop.guard.seal(self._stepper.reducers.all_parameters(), sent=True)
