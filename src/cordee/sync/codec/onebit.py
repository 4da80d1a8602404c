"""One bit per number: its sign, with a scale for every 256 of them (Seide and others, 2014); 28 times smaller."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from cordee.sync.codec.seam import Exchange, Gathered

BLOCK = 256
"""Numbers that share a scale: the mean of their sizes, which leaves out least."""


def to_onebit(flat: Tensor, windows: Sequence[Tensor], memory: dict[int, Tensor]) -> Exchange:
    """Every number of a block becomes the block's mean size or its negative; the difference follows in later steps."""
    blocks = pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().mean(dim=1, keepdim=True).float()
    places = torch.arange(8, dtype=torch.uint8, device=flat.device)
    signs = ((blocks >= 0).view(-1, 8).to(torch.uint8) << places).sum(dim=1, dtype=torch.uint8)
    rest = (blocks - torch.where(blocks >= 0, scales, -scales)).view(-1)[: flat.numel()]
    parts = yield Gathered(torch.cat([scales.view(-1).view(torch.uint8), signs]))
    total = torch.zeros_like(blocks)
    for part in parts:
        theirs = part[: scales.nbytes].clone().view(scales.dtype).view(-1, 1).to(flat.dtype)
        above = (part[scales.nbytes :].view(-1, 1) >> places & 1).view_as(blocks).to(torch.bool)
        total.add_(torch.where(above, theirs, -theirs))
    flat.copy_(total.view(-1)[: flat.numel()])
    return rest
