"""The largest numbers only: one in a hundred, with its place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cordee.sync.codec.seam import Exchange, Gathered

KEPT = 0.01
"""The part of the numbers that is sent, at least one."""


def to_topk(flat: Tensor, windows: Sequence[Tensor], memory: dict[int, Tensor]) -> Exchange:
    """Each replica sends its own largest; what it does not send it keeps for later steps, in which it grows."""
    count = max(1, int(KEPT * flat.numel()))
    places = flat.abs().topk(count, sorted=False).indices
    values, rest = flat[places], flat.clone()
    rest[places] = 0.0
    parts = yield Gathered(torch.cat([places.to(torch.int32).view(torch.uint8), values.view(torch.uint8)]))
    flat.zero_()
    for part in parts:
        theirs = part[: 4 * count].clone().view(torch.int32), part[4 * count :].clone().view(flat.dtype)
        flat.index_add_(0, theirs[0], theirs[1])
    return rest
