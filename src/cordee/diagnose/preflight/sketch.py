"""Gradients without copies: each is projected on a few random directions when it arrives, and dropped.

Memory stays at one parameter's gradient above the model. A direction is an outer product, so it takes the square root
of the parameter's memory; each parameter counts by its own size, as a step of an optimizer moves it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

DIRECTIONS = 4
LEAST_SIZE = 1e-2
"""A parameter counts as if it were at least so large: those that begin at zero count too."""


class Sketch:
    """Projections of the gradients of a backward pass."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Of these; what they hold in `grad` is given back by `close`."""
        self._parameters = [one for one in parameters if one.requires_grad]
        self._kept = [one.grad for one in self._parameters]
        self._directions = {id(one): _directions(one, place) for place, one in enumerate(self._parameters)}
        self._sums: list[Tensor] = []
        self._hooks = [
            one.register_post_accumulate_grad_hook(self._arrives)  # type: ignore[no-untyped-call]
            for one in self._parameters
        ]

    def begin(self) -> None:
        """A pass begins."""
        self._sums = []
        for one in self._parameters:
            one.grad = None

    def result(self) -> tuple[Tensor, float]:
        """The projections of the gradient since `begin`, and its size in their unit."""
        total = sum((values.cpu() for values in self._sums), torch.zeros(DIRECTIONS + 1, dtype=torch.float64))
        self.begin()
        return total[:-1], float(total[-1])

    def close(self) -> None:
        """Give back the gradients that were there before."""
        for hook in self._hooks:
            hook.remove()
        for one, kept in zip(self._parameters, self._kept, strict=True):
            one.grad = kept

    @torch.no_grad()
    def _arrives(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        flat = _flat(gradient)
        rows, columns, rest, size = self._directions[id(parameter)]
        even = rows.shape[1] * columns.shape[0]
        values = (rows.T * (flat[:even].view(rows.shape[1], -1) @ columns)).sum(0, dtype=torch.float64)
        values += (rest.T * flat[even:, None]).sum(0, dtype=torch.float64)
        norm = torch.linalg.vector_norm(flat).double()  # a wider format from the start would copy the gradient
        self._sums.append(torch.cat([values, norm[None]]) * size)


def _directions(parameter: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Rows and columns of the directions of a parameter, what is left of its numbers, and its size."""
    numbers = _flat(parameter.detach())
    generator = torch.Generator().manual_seed(seed)
    columns = math.isqrt(numbers.numel()) or 1
    rows = numbers.numel() // columns
    shapes = ((DIRECTIONS, rows), (columns, DIRECTIONS), (DIRECTIONS, numbers.numel() - rows * columns))
    made = [torch.randn(shape, generator=generator).to(numbers) for shape in shapes]
    size = float(torch.linalg.vector_norm(numbers)) / math.sqrt(max(1, numbers.numel()))
    return made[0], made[1], made[2], max(LEAST_SIZE, size)


def _flat(tensor: Tensor) -> Tensor:
    """Its numbers, the imaginary ones too; half precision is widened."""
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    return (real if real.dtype in (torch.float32, torch.float64) else real.float()).reshape(-1)
