"""Small batches of many steps, gathered at once: a call costs more than the few rows in it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cordee.feed.batch import Batch
from cordee.feed.digest import delivered_shares
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Source

MOST_BYTES = 2**20
"""Of all of them together."""
MOST, FEWEST = 32, 4


def steps_at_once(fields: Fields) -> int:
    """How many batches like this one are worth gathering at once; 0: one at a time."""
    tensors = _tensors(fields)
    nbytes = sum(one.nbytes for one in tensors)
    count = min(MOST, MOST_BYTES // nbytes) if nbytes else 0
    return count if count >= FEWEST else 0


def strip(source: Source, shares: Ids, positions: range, epoch: int, step: int) -> Iterator[Batch]:
    """The batches of steps from `step` on; a row of `shares` holds the ids at `positions` of one of them."""
    count = shares.shape[1]
    fields = source.gather(shares.reshape(-1))
    pieces = [torch.split(one, count) for one in _tensors(fields)]
    digests = delivered_shares(shares, positions)
    for place, parts in enumerate(zip(*pieces, strict=True)):
        batch = Batch(shares[place], dict(zip(fields, parts, strict=True)) if isinstance(fields, dict) else parts)
        batch.epoch, batch.step, batch.positions, batch.digest = epoch, step + place, positions, digests[place]
        yield batch


def _tensors(fields: Fields) -> list[Tensor]:
    """What a batch holds by name or by place; none of what is nested deeper."""
    held = list(fields.values() if isinstance(fields, dict) else fields if isinstance(fields, tuple) else ())
    return held if all(isinstance(one, Tensor) for one in held) else []
