"""Whether all members hold the same bytes: a checksum of each, of which only a few numbers travel."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from cordee.group.team import Team

_AT_ONCE = 2**16
"""Words that are multiplied and added up at once, so that it takes little memory."""


def alike(tensors: Sequence[Tensor], team: Team) -> bool:
    """Whether these are the same on all members, bit by bit; every member calls this."""
    while team.replicas > 1:
        mine = checksum(tensors)
        table = torch.zeros(team.replicas, len(mine), dtype=torch.uint8)  # a sum over members: all but one add zeros
        table[team.replica] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        if team.agree([table]):  # otherwise a member was lost, and the others have new ranks
            return bool((table == table[0]).all())
    return True


@torch.no_grad()
def checksum(tensors: Sequence[Tensor]) -> bytes:
    """It changes with any bit, and with its place; a few times as fast as a cryptographic one, and on any device.

    Words of 32 bits are multiplied with odd random numbers of 64 and added up: a bit that changes, even the highest
    one, changes many bits of the sum, and two of them cancel by chance only.
    """
    factors: dict[torch.device, tuple[Tensor, Tensor]] = {}
    digest = hashlib.sha256()
    for tensor in tensors:
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if raw.numel() % 4 or raw.storage_offset() % 4:
            raw = torch.cat([raw, raw.new_zeros(-raw.numel() % 4)])
        words = raw.view(torch.int32)
        if raw.device not in factors:
            random = torch.randint(-(2**62), 2**62, (_AT_ONCE,), generator=torch.Generator().manual_seed(0))
            factors[raw.device] = (2 * random + 1).to(raw.device), torch.empty_like(random, device=raw.device)
        factor, room = factors[raw.device]
        sums = torch.zeros(-(-words.numel() // _AT_ONCE), dtype=torch.int64, device=raw.device)
        for place in range(len(sums)):
            part = words[place * _AT_ONCE : (place + 1) * _AT_ONCE]
            # In place: what comes and goes among small blocks that stay would leave a gap each time.
            sums[place] = room[: len(part)].copy_(part).mul_(factor[: len(part)]).sum()
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(sums.cpu().numpy().tobytes())
    return digest.digest()
