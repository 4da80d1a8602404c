"""The members of a team in one process: each computes its share, one after the other, until all have met."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from cordee.group.channel import Unconnected
from cordee.group.comm import Comm
from cordee.group.membership import Membership
from cordee.group.meter import Meter
from cordee.sync.batchnorm import StepState, bind


class Table:
    """Where the members of a team lay what they gather: one after the other, so it takes rounds until all is there.

    What is gathered in the forward pass depends on nothing before, what is gathered in the backward pass on that: the
    third round has everybody's parts of both.
    """

    ROUNDS = 3

    def __init__(self, size: int) -> None:
        self.parts: dict[tuple[int, int], Tensor] = {}
        self.size = size


class Seat(Comm):
    """A member's place at a table, for one round."""

    def __init__(self, table: Table, number: int) -> None:
        super().__init__(Membership(Unconnected()), Meter())
        self.rank, self.size = number, table.size
        self.transports = (self,)  # type: ignore[assignment]
        self._table, self._gathers = table, 0

    def gather(self, tensor: Tensor) -> Any:
        turn, self._gathers = self._gathers, self._gathers + 1
        self._table.parts[turn, self.rank] = tensor.clone()
        parts = [self._table.parts.get((turn, member), tensor).clone() for member in range(self.size)]
        return SimpleNamespace(wait=lambda: parts)


def lost() -> Comm:
    """Between two members, one of which was lost."""
    comm = Comm(Membership(Unconnected()), Meter())
    comm.among((0, 1))
    return comm


class Outcome:
    """What came of a forward and a backward pass of one layer."""

    def __init__(self, layer: nn.Module, x: Tensor, upstream: Tensor) -> None:
        self.layer = layer
        x = x.detach().requires_grad_()
        self.out = layer(x)
        assert self.out.dtype == x.dtype and self.out.shape == x.shape
        self.out.backward(upstream)
        assert x.grad is not None and x.grad.dtype == x.dtype
        self.out, self.d_x = self.out.detach(), x.grad

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.layer.parameters() if parameter.grad is not None]


def members(layer: nn.Module, inputs: Sequence[tuple[Tensor, Tensor, bool]]) -> list[Outcome]:
    """The layer over these inputs and gradients, each a member's; silent or not."""
    table = Table(len(inputs))
    outcomes: list[Outcome] = []
    for _ in range(Table.ROUNDS):
        outcomes.clear()
        for number, (x, upstream, silent) in enumerate(inputs):
            mine = copy.deepcopy(layer)
            bind(mine, "exact", Seat(table, number), StepState(silent=silent))
            outcomes.append(Outcome(mine, x, upstream))
    return outcomes


def shared_out(layer: nn.Module, x: Tensor, upstream: Tensor, shares: Sequence[int]) -> list[Outcome]:
    """The layer over the shares of a batch; a share of 0 borrows a sample."""
    inputs, end = [], 0
    for share in shares:
        rows = slice(end, end + share) if share else slice(0, 1)
        inputs.append((x[rows], upstream[rows], share == 0))
        end += share
    return members(layer, inputs)


def whole(parts: Sequence[Outcome], shares: Sequence[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Output, gradient of the input, and gradients of the parameters, of all shares together."""
    real = [part for part, share in zip(parts, shares, strict=True) if share]
    sums = [sum(each) for each in zip(*(part.gradients() for part in real), strict=True)]
    return torch.cat([part.out for part in real]), torch.cat([part.d_x for part in real]), sums  # type: ignore[return-value]
