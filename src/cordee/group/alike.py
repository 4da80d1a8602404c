"""Whether all members hold the same bytes: a checksum of each, of which only a few numbers travel."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from cordee.group.team import Team


def alike(tensors: Sequence[Tensor], team: Team) -> bool:
    """Whether these are the same on all members, bit by bit; every member calls this."""
    while team.shares > 1:
        mine = checksum(tensors)
        table = torch.zeros(team.shares, len(mine), dtype=torch.uint8)  # a sum over members: all but one add zeros
        table[team.share] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        if team.agree([table]):  # otherwise a member was lost, and the others have new ranks
            return bool((table == table[0]).all())
    return True


def checksum(tensors: Sequence[Tensor]) -> bytes:
    """Of their bytes, shapes and types."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
