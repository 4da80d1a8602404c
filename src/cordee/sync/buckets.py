"""Buckets: gradients side by side in flat memory, so that many of them travel as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cordee.group.comm import NEVER, Handle

FIRST_MB = 1.0
"""The first bucket is small, so that the wire is busy early."""


@dataclass
class Bucket:
    """Some parameters of one type and device, and their gradients side by side in flat memory, once for each set."""

    parameters: list[nn.Parameter]
    flats: list[Tensor]
    views: list[list[Tensor]]
    missing: int = 0
    handle: Handle = NEVER


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
    return Bucket(group, flats, [_views(flat, group) for flat in flats])


def _views(flat: Tensor, group: Sequence[nn.Parameter]) -> list[Tensor]:
    """Every parameter's window of `flat`, with the parameter's own strides where they are dense (channels-last)."""
    views, offset = [], 0
    for parameter in group:
        strides = parameter.stride() if is_dense(parameter) else parameter.contiguous().stride()
        views.append(flat.as_strided(parameter.shape, strides, offset))
        offset += parameter.numel()
    return views


def is_dense(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor fill its memory without a gap, in whatever order; a slice of columns does not."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()  # which only keeps strides that do
