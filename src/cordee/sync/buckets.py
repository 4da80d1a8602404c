"""Buckets: gradients side by side in flat memory, so that many of them travel as one.

Behind the gradients of the last bucket ride some numbers of the caller, and for each parameter on how many replicas it
has a gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cordee.group.comm import NEVER, Handle
from cordee.sync.sparse import is_sparse

FIRST_MB = 1.0
"""The first bucket is small, so that the wire is busy early."""
TRAVELS_S, LEAST_MB, MOST_MB = 0.035, 0.5, 25.0
"""Between hosts a bucket is as large as what the slowest link carries in so long: gradients set out soon, and what each
bucket costs by itself stays small beside that. A CNN of 4.8 MB took 1.3 % longer with 0.25 MiB at 10 Mbit/s."""
SMALL_BYTES = 4 * 2**20
"""Gradients of so many bytes in all have two sets of buckets."""
_LATE = 2.0**12
"""Rides along for a parameter whose gradient is sparse though it lies in a bucket; more than there are replicas."""


@dataclass
class Bucket:
    """Some parameters of one type and device, and their gradients side by side in flat memory, once for each set."""

    parameters: list[nn.Parameter]
    flats: list[Tensor]
    views: list[list[Tensor]]
    missing: int = 0
    handle: Handle = NEVER


class Buckets(list[Bucket]):
    """The gradients of some parameters, in one set of buckets or two that take turns; empty without memory."""

    sets = 2
    places: Sequence[tuple[Bucket, int] | None] = ()
    """Where each parameter lies: its bucket, and its number in it; None for those with sparse gradients."""
    riders: Sequence[NDArray[Any]] = ()
    """For each set: the numbers behind the gradients of the last bucket."""
    flats: Sequence[list[Tensor]] = ()
    """For each set: the gradients of its buckets side by side, without the numbers that ride along."""
    _parameters: Sequence[nn.Parameter] = ()
    _replicas = 0
    _everywhere = b""
    """How it looks in the last bucket if every replica has a gradient for every parameter."""

    @classmethod
    def of(
        cls,
        parameters: Sequence[nn.Parameter],
        sparse: Collection[int],
        riders: int,
        most_mb: float,
        *,
        apart: bool = False,
    ) -> Buckets:
        """Take memory for all but those numbered `sparse`, and for `riders` numbers of the caller, `apart` or not."""
        made = cls()
        dense = [parameter for number, parameter in enumerate(parameters) if number not in sparse]
        made.sets = 2 if sum(parameter.nbytes for parameter in dense) <= SMALL_BYTES else 1
        made._parameters = parameters
        closed = grouped(dense, most_mb)
        last = closed[-1][0] if closed else None
        if apart or last is None or last.device.type != "cpu" or last.dtype not in (torch.float32, torch.float64):
            closed.append([])  # the riders need a bucket that is exact and near
        behind = riders + len(parameters)
        made += [make_bucket(group, behind if group is closed[-1] else 0, made.sets) for group in closed]
        places = {id(p): (bucket, place) for bucket in made for place, p in enumerate(bucket.parameters)}
        made.places = [places.get(id(parameter)) for parameter in parameters]
        made.riders = [flat[-behind:].numpy() for flat in made[-1].flats]
        sizes = [sum(parameter.numel() for parameter in bucket.parameters) for bucket in made]
        made.flats = [
            [one.flats[turn][:size] for one, size in zip(made, sizes, strict=True) if size] for turn in range(made.sets)
        ]
        return made

    def expect(self, replicas: int) -> None:
        """So many replicas add up their gradients from now on."""
        if replicas != self._replicas:
            self._replicas = replicas
            self._everywhere = np.full_like(self._present(0), replicas).tobytes()

    def fill(self, bucket: Bucket, turn: int) -> None:
        """Copy into a bucket the gradients that do not lie in it yet."""
        strided, views = torch.strided, bucket.views[turn]
        gradients = [parameter.grad for parameter in bucket.parameters]
        pairs = [(view, made) for view, made in zip(views, gradients, strict=True) if made is not view]
        copied = [(view, made) for view, made in pairs if made is not None and made.layout is strided]
        if len(copied) < len(pairs):
            for view, made in pairs:
                if made is None or is_sparse(made):
                    view.zero_()
        if copied:
            torch._foreach_copy_([view for view, _ in copied], [made for _, made in copied])
        if copied and self.sets == 1:  # a large gradient goes before the next bucket takes memory
            for parameter, view, made in zip(bucket.parameters, views, gradients, strict=True):
                parameter.grad = view if made is not None and made.layout is strided else made

    def ride(self, turn: int, numbers: Sequence[float]) -> None:
        """Write what rides along: the caller's numbers, and which parameters have a gradient here."""
        rider, count = self.riders[turn], len(self._parameters)
        rider[:-count] = numbers
        gradients = [parameter.grad for parameter in self._parameters]
        rider[-count:] = [made is not None for made in gradients]
        for number, made in enumerate(gradients):
            if made is not None and made.layout is not torch.strided and self.places[number] is not None:
                rider[number - count] = _LATE

    def late(self, turn: int) -> set[int]:
        """The numbers of parameters in buckets whose gradient is sparse on some replica."""
        present = self._present(turn)
        if present.tobytes() == self._everywhere or present.max() < _LATE:
            return set()
        return set((present >= _LATE).nonzero()[0].tolist())

    def hand_out(self, turn: int) -> None:
        """Point every `grad` at the sum; at None where no replica had any."""
        for bucket in self:
            for parameter, view in zip(bucket.parameters, bucket.views[turn], strict=True):
                if parameter.grad is not view:
                    parameter.grad = view
        present = self._present(turn)
        if present.tobytes() != self._everywhere:
            for parameter, count in zip(self._parameters, present, strict=True):
                if count == 0.0:
                    parameter.grad = None

    def _present(self, turn: int) -> NDArray[Any]:
        """For each parameter: on how many replicas it has a gradient."""
        return self.riders[turn][-len(self._parameters) :]


def most_mb_on(link: float) -> float:
    """The size of a bucket between hosts, in MiB, where the slowest link carries so many bytes per second."""
    return min(MOST_MB, max(LEAST_MB, link * TRAVELS_S / 2**20))


def grouped(parameters: Sequence[nn.Parameter], most_mb: float) -> list[list[nn.Parameter]]:
    """Parameters of one type and device together, last first: roughly the order in which their gradients come."""
    groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    closed: list[list[nn.Parameter]] = []
    for parameter in reversed(parameters):
        group = groups.setdefault((parameter.dtype, parameter.device), [])
        group.append(parameter)
        limit = most_mb if closed else min(FIRST_MB, most_mb)
        if sum(p.nbytes for p in group) >= limit * 2**20:  # a large one is sent while the others are computed
            closed.append(list(group))
            group.clear()
    return closed + [group for group in groups.values() if group]


def make_bucket(group: list[nn.Parameter], riders: int, sets: int) -> Bucket:
    """Memory for the gradients of `group` and `riders` numbers behind them, for each set."""
    size = sum(parameter.numel() for parameter in group) + riders
    like = group[0] if group else torch.empty(0, dtype=torch.float64)
    flats = [torch.empty(size, dtype=like.dtype, device=like.device) for _ in range(sets)]
    return Bucket(group, flats, [windows(flat, group) for flat in flats])


def windows(flat: Tensor, group: Sequence[nn.Parameter]) -> list[Tensor]:
    """Where the gradient of each parameter lies in flat memory: with its own strides, if they are dense."""
    made, offset = [], 0
    for parameter in group:  # channels-last, for instance
        strides = parameter.stride() if is_dense(parameter) else parameter.contiguous().stride()
        made.append(flat.as_strided(parameter.shape, strides, offset))
        offset += parameter.numel()
    return made


def is_dense(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor fill its memory without a gap, in whatever order; a slice of columns does not."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()  # which only keeps strides that do
