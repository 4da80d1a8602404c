"""Tensors in parts of bounded size, as bytes: what is sent at once takes memory at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

SHARED_AT_ONCE = 16 * 2**20
"""Bytes that this takes beside the tensors themselves, and beside a copy of one that does not lie in one piece."""


@dataclass
class Part:
    """Some of the bytes of some tensors."""

    own: list[Tensor] = field(default_factory=list)
    """Flat, as bytes: the tensors' own memory, or that of a contiguous copy."""
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """A tensor that does not lie in one piece, and its copy."""

    @torch.no_grad()
    def put(self, raw: Sequence[Tensor]) -> None:
        """Write these bytes into the tensors."""
        for mine, given in zip(self.own, raw, strict=True):
            mine.copy_(given)
        for tensor, copy in self.copies:
            tensor.copy_(copy)


def in_parts(tensors: Sequence[Tensor], most: int) -> Iterator[Part]:
    """The bytes of `tensors` in order, at most `most` at a time; sizes alone decide on the cuts, so on all workers."""
    part = Part()
    for tensor in tensors:
        flat = tensor.detach().contiguous()
        raw = flat.reshape(-1).view(torch.uint8)
        for start in range(0, raw.numel(), most):
            piece = raw[start : start + most]
            if part.own and sum(map(Tensor.numel, part.own)) + piece.numel() > most:
                yield part
                part = Part()
            part.own.append(piece)
        if flat.data_ptr() != tensor.data_ptr():  # written back with its last piece
            part.copies.append((tensor.detach(), flat))
    if part.own:
        yield part
