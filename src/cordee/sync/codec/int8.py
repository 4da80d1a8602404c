"""8 bits per number: whole numbers from -127 to 127, with a scale for every 256 of them; 3.94 times smaller."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from cordee.sync.codec.seam import Exchange, Gathered

BLOCK = 256
"""Numbers that share a scale: the largest of them is exact, and no other is wrong by more than 1/254 of it."""


def to_int8(flat: Tensor, windows: Sequence[Tensor], memory: dict[int, Tensor]) -> Exchange:
    """Rounded to the nearest; every replica's numbers have scales of their own, so all are shown to all."""
    blocks = pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True) / 127
    numbers = (blocks / scales.clamp_min(torch.finfo(scales.dtype).tiny)).round_().to(torch.int8)
    rest = (blocks - numbers * scales).view(-1)[: flat.numel()]
    parts = yield Gathered(torch.cat([scales.view(-1).view(torch.int8), numbers.view(-1)]))
    total = torch.zeros_like(blocks)
    for part in parts:
        theirs, whole = part[: scales.nbytes].clone().view(scales.dtype), part[scales.nbytes :].view_as(blocks)
        total.addcmul_(whole.to(flat.dtype), theirs.view(-1, 1))
    flat.copy_(total.view(-1)[: flat.numel()])
    return rest
