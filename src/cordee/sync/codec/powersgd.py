"""PowerSGD (Vogels and others, 2019): a matrix as the product of two thin ones, by one step of power iteration."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cordee.sync.codec.seam import Exchange, Summed, cut_as

RANK = 4
"""Columns of the thin matrices."""


def to_powersgd(flat: Tensor, windows: Sequence[Tensor], memory: dict[int, Tensor]) -> Exchange:
    """Gradients of vectors, and of matrices that would not get smaller, are sent as they are.

    With M the sum over the replicas and Q of the step before: P = orthonormal columns of MQ, then Q = transposed(M)P,
    each a plain sum. A matrix of n x m numbers costs RANK * (n + m).
    """
    matrices, vectors = {}, []
    for number, window in enumerate(windows):
        matrix = window.reshape(len(window), -1) if window.dim() > 1 else window.reshape(1, -1)
        if RANK * sum(matrix.shape) < matrix.numel():
            matrices[number] = matrix
            memory.setdefault(number, _any_start(matrix, number))
        else:
            vectors.append(window)
    thin = [matrix @ memory[number] for number, matrix in matrices.items()]
    total = yield Summed(torch.cat([one.reshape(-1) for one in [*thin, *vectors]]))
    *thin, rest = torch.split(total, [*(one.numel() for one in thin), sum(one.numel() for one in vectors)])
    columns = {
        number: torch.linalg.qr(one.view(-1, RANK)).Q for (number, _), one in zip(matrices.items(), thin, strict=True)
    }
    own = {number: matrix.T @ columns[number] for number, matrix in matrices.items()}
    left_out = torch.zeros_like(flat)
    for number, window in enumerate(cut_as(left_out, windows)):
        if number in matrices:
            window.copy_((matrices[number] - columns[number] @ own[number].T).view(window.shape))
    if matrices:
        total = yield Summed(torch.cat([one.reshape(-1) for one in own.values()]))
        for (number, one), part in zip(own.items(), torch.split(total, [o.numel() for o in own.values()]), strict=True):
            memory[number] = part.view_as(one)
            windows[number].copy_((columns[number] @ memory[number].T).view(windows[number].shape))
    for window, part in zip(vectors, torch.split(rest, [one.numel() for one in vectors]), strict=True):
        window.copy_(part.view_as(window))
    return left_out


def _any_start(matrix: Tensor, number: int) -> Tensor:
    """Random columns, the same on all replicas."""
    draws = torch.Generator().manual_seed(number)
    return torch.randn(matrix.shape[1], RANK, generator=draws, dtype=matrix.dtype).to(matrix.device)
