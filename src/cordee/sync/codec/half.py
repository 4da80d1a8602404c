"""16 bits per number: half of what float32 takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cordee.sync.codec.seam import Exchange, Gathered


def to_bf16(flat: Tensor, windows: Sequence[Tensor], memory: dict[int, Tensor]) -> Exchange:
    """The range of float32 with 8 bits of precision."""
    return _rounded(flat, torch.bfloat16)


def to_fp16(flat: Tensor, windows: Sequence[Tensor], memory: dict[int, Tensor]) -> Exchange:
    """11 bits of precision, up to 65,504: larger numbers are cut to that, and what is cut follows in later steps."""
    return _rounded(flat, torch.float16)


def _rounded(flat: Tensor, dtype: torch.dtype) -> Exchange:
    most = torch.finfo(dtype).max
    payload = torch.where(flat.isfinite(), flat.clamp(-most, most), flat).to(dtype)
    rest = flat - payload
    parts = yield Gathered(payload)  # a sum of such numbers would be rounded once more, and that would be lost
    flat.zero_()
    for part in parts:
        flat.add_(part)
    return rest
