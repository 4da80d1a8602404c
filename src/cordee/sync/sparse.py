"""Sparse gradients, as of `nn.Embedding(sparse=True)`: the rows that were touched, of all replicas, and no dense sum.

Rows are exchanged before the sum that carries a step's agreement begins, and a replica begins it only with the rows of
all. A replica that is handed the result of an agreement therefore has the rows already: they are never handed over.

Cost on each replica: the touched rows of all replicas, and two collectives per step, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cordee.group.comm import Comm


def is_sparse(gradient: Tensor | None) -> bool:
    """Whether it holds some rows only."""
    return gradient is not None and gradient.layout is not torch.strided


def find(parameters: Sequence[nn.Parameter], comm: Comm) -> set[int] | None:
    """The numbers of the parameters whose gradient is sparse on some replica; None if a worker was lost."""
    mine = torch.tensor([is_sparse(parameter.grad) for parameter in parameters], dtype=torch.uint8)
    replicas = comm.gather(mine).wait()
    return None if replicas is None else set(torch.stack(replicas).any(0).nonzero().view(-1).tolist())


def values_of(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The numbers of their sparse gradients, each row once; to change them is to change the gradient."""
    sparse = [parameter for parameter in parameters if is_sparse(parameter.grad)]
    for parameter in sparse:
        parameter.grad = _rows(parameter)
    return [parameter.grad._values() for parameter in sparse if parameter.grad is not None]


def add_up(parameters: Sequence[nn.Parameter], comm: Comm) -> list[Tensor] | None:
    """The sum of each parameter's gradients over all replicas, in the same bits on each; None if a worker was lost."""
    own = [_rows(parameter).cpu() for parameter in parameters]
    counts = comm.gather(torch.tensor([gradient._nnz() for gradient in own])).wait()
    if counts is None:
        return None
    blob = torch.cat([_raw(part) for gradient in own for part in (gradient._indices(), gradient._values())])
    row = [8 + gradient._values().element_size() * gradient.shape[1:].numel() for gradient in own]
    table = torch.stack(counts).tolist()
    sizes = [sum(count * nbytes for count, nbytes in zip(line, row, strict=True)) for line in table]
    whole = torch.zeros(sum(sizes), dtype=torch.uint8)  # a sum of bytes: all replicas but one add zeros
    start = sum(sizes[: comm.rank])
    whole[start : start + len(blob)] = blob
    if len(whole) and not comm.sum(whole).wait():
        return None
    pieces = _cut(whole, table, own)
    return [_merged(gradient, of_it).to(p.device) for gradient, of_it, p in zip(own, pieces, parameters, strict=True)]


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


def _raw(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _cut(whole: Tensor, table: list[list[int]], own: Sequence[Tensor]) -> list[list[tuple[Tensor, Tensor]]]:
    """For each parameter the indices and values that each replica has sent."""
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in own]
    start = 0
    for line in table:
        for place, (count, like) in enumerate(zip(line, own, strict=True)):
            shape = (count, *like.shape[1:])
            middle = start + 8 * count
            end = middle + like._values().element_size() * torch.Size(shape).numel()
            indices = whole[start:middle].clone().view(torch.int64)
            found[place].append((indices, whole[middle:end].clone().view(like.dtype).view(shape)))
            start = end
    return found


def _merged(like: Tensor, pieces: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    indices, values = (torch.cat(one) for one in zip(*pieces, strict=True))
    return _made(indices[None], values, like)
