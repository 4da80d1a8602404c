"""The layers that can be cut: what kinds there are, and how one computes with its slice.

A column layer takes the whole input and gives some of the outputs. A row layer takes these and gives its part of a
sum, which is added up over the workers of the replica. Only these two meet the other workers; between them everything
is local. The weights are DTensors, which know their place in the whole; the arithmetic is on what they hold here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from cordee.group.sliced import slice_of
from cordee.group.team import Team

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def is_transposed(layer: nn.Module) -> bool:
    """Whether it is a `Conv1D` of transformers, a linear layer whose weight is (inputs, outputs)."""
    return type(layer).__name__ == "Conv1D" and type(layer).__module__ == "transformers.pytorch_utils"


def is_linear(layer: nn.Module) -> bool:
    """Whether it is a linear layer that computes as torch's do, on a weight of its own."""
    plain = isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
    return (plain or is_transposed(layer)) and isinstance(layer._parameters.get("weight"), nn.Parameter)


def cut_dimension(layer: nn.Module, how: str) -> int:
    """The dimension of the weight that is cut."""
    return int((how == "row") != is_transposed(layer))


def size_of(layer: nn.Module, how: str) -> int:
    """How many outputs (`column`) or inputs (`row`) a linear layer has."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight.shape[cut_dimension(layer, how)]


_apart = False
"""Whether layers do not meet other workers now."""


@contextmanager
def apart() -> Iterator[None]:
    """In here layers meet no other worker: only the shape of what they give is asked for."""
    global _apart
    before, _apart = _apart, True
    try:
        yield
    finally:
        _apart = before


class Meeting:
    """Where the layers of one group meet the other workers of the replica."""

    def __init__(self, team: Team) -> None:
        """Of the workers that hold a replica together."""
        self.team = team
        self._entered: tuple[Tensor, Tensor] | None = None

    def enter(self, x: Tensor) -> Tensor:
        """`x` for a column layer; those that take the same `x` share one sum in the backward pass."""
        if self._entered is None or self._entered[0] is not x:
            self._entered = x, _Enter.apply(x, self.team)  # type: ignore[no-untyped-call]
        return self._entered[1]

    def leave(self, part: Tensor) -> Tensor:
        """The sum of all workers' parts, from a row layer."""
        self._entered = None
        if _apart:
            return part
        whole: Tensor = _Leave.apply(part, self.team)  # type: ignore[no-untyped-call]
        return whole


class _Enter(torch.autograd.Function):
    """The same forward; backward, the gradients that come from all slices are added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team) -> Tensor:
        ctx.team = team
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Leave.apply(gradients[0], ctx.team), None  # type: ignore[no-untyped-call]


def _unseen() -> AbstractContextManager[Any]:
    """Around an exchange: `recompute=selective` counts operations, and how many an exchange takes differs."""
    unseen: AbstractContextManager[Any] = _disable_current_modes()
    return unseen


class _Leave(torch.autograd.Function):
    """The sum over all slices; backward, each slice has the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, team: Team) -> Tensor:
        ctx.team = team
        with _unseen():
            whole = part.detach().clone(memory_format=torch.contiguous_format)
            complete = team.slices.sum(whole).wait()
        if not complete:
            team.lines.leave_if_broken()  # if it was not a worker of ours, this step is void and done again
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Enter.apply(gradients[0], ctx.team), None  # type: ignore[no-untyped-call]


def share_of(size: int, place: int, slices: int) -> tuple[int, int]:
    """Where the share of one of so many workers begins, and how long it is: equal, but for the last."""
    most = -(-size // slices)
    start = min(size, place * most)
    return start, min(most, size - start)


def gathered(part: Tensor, dim: int, size: int, team: Team) -> Tensor:
    """The slices of all workers side by side, so many numbers of a dimension (-1: the last) in all."""
    whole: Tensor = _Gather.apply(part, dim, size, team)  # type: ignore[no-untyped-call]
    return whole


def own_slice(whole: Tensor, dim: int, team: Team) -> Tensor:
    """The slice of this worker, of what all of them have."""
    part: Tensor = _Own.apply(whole, dim, team)  # type: ignore[no-untyped-call]
    return part


class _Gather(torch.autograd.Function):
    """The slices of one dimension, side by side; backward, each worker takes the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, size: int, team: Team) -> Tensor:
        ctx.dim, ctx.team = dim, team
        most = -(-size // team.slices.size)
        padding = [0, 0] * (-dim - 1) + [0, most - part.shape[dim]]
        even = nn.functional.pad(part.detach(), padding).contiguous()
        with _unseen():
            parts = [even] * team.slices.size if _apart else team.slices.gather(even).wait()
        if parts is None:
            team.lines.leave_if_broken()  # if it was not a worker of ours, this step is void and done again
            parts = [even] * team.slices.size
        lengths = [share_of(size, place, len(parts))[1] for place in range(len(parts))]
        return torch.cat([one.narrow(dim, 0, length) for one, length in zip(parts, lengths, strict=True)], dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _Own.apply(gradients[0], ctx.dim, ctx.team), None, None, None  # type: ignore[no-untyped-call]


class _Own(torch.autograd.Function):
    """This worker's slice of one dimension; backward, those of all are gathered."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, dim: int, team: Team) -> Tensor:
        ctx.dim, ctx.size, ctx.team = dim, whole.shape[dim], team
        own = whole.narrow(dim, *share_of(ctx.size, team.slices.rank, team.slices.size))
        return own.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _Gather.apply(gradients[0], ctx.dim, ctx.size, ctx.team), None, None  # type: ignore[no-untyped-call]


def cut_linear(layer: nn.Module, how: str, meeting: Meeting, mesh: DeviceMesh, blocks: int = 1) -> None:
    """Keep this worker's slice of a linear layer, and let it compute with that; in place."""
    slice_of(layer, "weight", cut_dimension(layer, how), mesh, blocks)
    if how == "column" and layer.bias is not None:
        slice_of(layer, "bias", 0, mesh, blocks)
    layer.forward = partial({"column": column_part, "row": _row}[how], layer, meeting)


def column_part(layer: Any, meeting: Meeting, input: Tensor) -> Tensor:
    """Some of the outputs of a linear layer, those of this worker."""
    bias = None if layer.bias is None else local(layer.bias)
    return nn.functional.linear(meeting.enter(input), _weight(layer), bias)


def _row(layer: Any, meeting: Meeting, input: Tensor) -> Tensor:
    whole = meeting.leave(nn.functional.linear(input, _weight(layer)))
    return whole if layer.bias is None else whole + layer.bias.to(whole.dtype)  # under autocast it is of another type


def _weight(layer: Any) -> Tensor:
    weight = local(layer.weight)
    return weight.T if is_transposed(layer) else weight


def local(parameter: Any) -> Tensor:
    """What this worker holds of a parameter, as a part of the graph: its gradient goes to the parameter."""
    held: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter  # of another stage: no numbers
    return held
