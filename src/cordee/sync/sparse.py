"""Sparse gradients, as of `nn.Embedding(sparse=True)`: the rows that were touched, of all replicas, and no dense sum.

Rows are exchanged before the sum that carries a step's agreement begins, and a replica begins it only with the rows of
all. A replica that is handed the result of an agreement therefore has the rows already: they are never handed over.

Cost on each replica: for each of them as many rows as the one that touched most, whatever the size of the table, and
two collectives per table and step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cordee.group.comm import Comm


def is_sparse(gradient: Tensor | None) -> bool:
    """Whether it holds some rows only."""
    return gradient is not None and gradient.layout is not torch.strided


def find(parameters: Sequence[nn.Parameter], comm: Comm, number: float) -> tuple[set[int], float] | None:
    """The numbers of the parameters whose gradient is sparse on some replica; None if a worker was lost.

    And the largest `number` of all replicas: what is agreed on together is agreed on by all or by none.
    """
    mine = torch.tensor([*(is_sparse(parameter.grad) for parameter in parameters), number], dtype=torch.float64)
    if (replicas := comm.gather(mine).wait()) is None:
        return None
    table = torch.stack(replicas)
    return set(table[:, :-1].any(0).nonzero().view(-1).tolist()), float(table[:, -1].max())


def values_of(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The numbers of their sparse gradients, each row once; to change them is to change the gradient."""
    sparse = [parameter for parameter in parameters if is_sparse(parameter.grad)]
    for parameter in sparse:
        parameter.grad = _rows(parameter)
    return [parameter.grad._values() for parameter in sparse if parameter.grad is not None]


def numbers_of(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The numbers of all their gradients."""
    return values_of(parameters) + [p.grad for p in parameters if p.grad is not None and not is_sparse(p.grad)]


def add_up(parameters: Sequence[nn.Parameter], comm: Comm) -> list[Tensor] | None:
    """The sum of each parameter's gradients over all replicas, in the same bits on each; None if a worker was lost."""
    own = [_rows(parameter).cpu() for parameter in parameters]
    counts = comm.gather(torch.tensor([gradient._nnz() for gradient in own])).wait()
    if counts is None:
        return None
    sums = []
    for parameter, gradient, *rows in zip(parameters, own, *(line.tolist() for line in counts), strict=True):
        indices = _gathered(gradient._indices()[0], rows, comm)
        values = _gathered(gradient._values(), rows, comm)
        if indices is None or values is None:
            return None
        sums.append(_made(indices[None], values, gradient).to(parameter.device))
    return sums


def _gathered(own: Tensor, rows: Sequence[int], comm: Comm) -> Tensor | None:
    """The rows of all replicas, which have so many each; all send as many as the one with most has."""
    padded = own.new_zeros((max(rows), *own.shape[1:]))
    padded[: len(own)] = own
    of_all = comm.gather(padded).wait()
    return None if of_all is None else torch.cat([part[:count] for part, count in zip(of_all, rows, strict=True)])


def _rows(parameter: nn.Parameter) -> Tensor:
    """Its gradient by rows, each once and in order; without rows if there is none."""
    gradient = parameter.grad
    if gradient is None:
        none = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
        return _made(none, parameter.new_empty((0, *parameter.shape[1:])), parameter)
    if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != 1:
        gradient = gradient.to_dense().to_sparse(1)
    return gradient.coalesce()


def _made(indices: Tensor, values: Tensor, like: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=False).coalesce()
