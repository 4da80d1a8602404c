"""The tensor of every worker, whatever its shape: for metrics that keep more than sums."""

from __future__ import annotations

import torch
from torch import Tensor

from cordee.group.team import Team

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_MOST_DIMENSIONS = 12


class Regrouped(Exception):
    """The members changed between two agreements that belong together: the caller begins anew."""


def gather_any(team: Team, tensor: Tensor) -> list[Tensor]:
    """The tensors of all members in rank order. Shapes and types may differ; raises `Regrouped`."""
    if team.replicas == 1:
        return [tensor]
    generation = team.membership.generation
    headers = torch.zeros(team.replicas, _MOST_DIMENSIONS + 2, dtype=torch.int64)
    own = [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
    headers[team.replica, : len(own)] = torch.tensor(own)
    _agree(team, headers, generation)
    shapes = [(_DTYPES[row[0]], row[2 : 2 + row[1]]) for row in headers.tolist()]
    sizes = [torch.Size(shape).numel() * dtype.itemsize for dtype, shape in shapes]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    content = torch.zeros(ends[-1], dtype=torch.uint8)  # a sum over members: all but one add zeros
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    content[ends[team.replica] - sizes[team.replica] : ends[team.replica]] = raw
    if content.numel():
        _agree(team, content, generation)
    parts = [content[end - size : end].clone() for end, size in zip(ends, sizes, strict=True)]
    return [part.view(dtype).reshape(shape) for part, (dtype, shape) in zip(parts, shapes, strict=True)]


def _agree(team: Team, tensor: Tensor, generation: int) -> None:
    """An agreement that is not the last of several: even handed over, it is of no use to a new generation."""
    if not team.agree([tensor]) or team.membership.generation != generation:
        raise Regrouped
