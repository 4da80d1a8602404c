"""Gradients without copies: each is projected on a few random directions when it arrives, and dropped.

Memory stays at one parameter's gradient above the model. A direction is an outer product of one vector per row and one
per column of the parameter, so it takes little memory. Each parameter counts by its own size, as an update moves it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

DIRECTIONS = 4
LEAST_SIZE = 1e-2
"""A parameter counts as if it were at least so large: those that begin at zero count too."""


class Sketch:
    """Projections of the gradients of a backward pass."""

    def __init__(self, parameters: Sequence[nn.Parameter], stack: ExitStack) -> None:
        """Of these; closing `stack` gives back what they hold in `grad`."""
        self._parameters = [one for one in parameters if one.requires_grad]
        self._directions = {id(one): _directions(one, place) for place, one in enumerate(self._parameters)}
        self._sums: list[Tensor] = []
        for one in self._parameters:
            stack.callback(setattr, one, "grad", one.grad)
            hook = one.register_post_accumulate_grad_hook(self._project)  # type: ignore[no-untyped-call]
            stack.callback(hook.remove)

    def begin(self) -> None:
        """A pass begins."""
        self._sums = []
        for one in self._parameters:
            one.grad = None

    def result(self) -> tuple[Tensor, float]:
        """The projections of the gradient since `begin`, and its size in their unit."""
        total = sum((values.cpu() for values in self._sums), torch.zeros(DIRECTIONS + 1, dtype=torch.float64))
        return total[:-1], float(total[-1])

    @torch.no_grad()
    def _project(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        matrix = _matrix(gradient)
        rows, columns, size = self._directions[id(parameter)]
        values = (rows * (matrix @ columns)).sum(0, dtype=torch.float64)
        norm = torch.linalg.vector_norm(matrix).double()  # a wider format from the start would copy the gradient
        self._sums.append(torch.cat([values, norm[None]]) * size)


def _directions(parameter: Tensor, seed: int) -> tuple[Tensor, Tensor, float]:
    """Rows and columns of the directions of a parameter, and its size."""
    matrix = _matrix(parameter.detach())
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randn(count, DIRECTIONS, generator=generator).to(matrix) for count in matrix.shape)
    size = float(torch.linalg.vector_norm(matrix)) / math.sqrt(max(1, matrix.numel()))
    return rows, columns, max(LEAST_SIZE, size)


def _matrix(tensor: Tensor) -> Tensor:
    """Its numbers, a row per place of the first dimension, the imaginary ones too; half precision is widened."""
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    wide = real if real.dtype in (torch.float32, torch.float64) else real.float()
    return wide.reshape(wide.shape[0] if wide.dim() else 1, math.prod(wide.shape[1:]))
