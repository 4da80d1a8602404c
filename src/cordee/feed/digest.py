"""Proof of what was delivered: a digest of sample ids that does not depend on how a batch was cut."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cordee.feed.permute import Ids, mix

_STEP = np.uint64(0x9E3779B97F4A7C15)


def delivered(ids: Ids, positions: range | Ids) -> int:
    """The digest of `ids` at these positions of the global batch: add those of all shares, modulo 2**64.

    Every pair (position, id) is hashed to 64 bits and the hashes are added, so the sum tells whether each id stood at
    its position exactly once, on any worker.
    """
    if len(ids) != len(positions):
        raise ValueError(f"{len(ids)} ids for {len(positions)} positions")
    places = _of_range(positions) if isinstance(positions, range) else _of_places(positions)
    return int(np.add.reduce(mix(ids.view(np.uint64) ^ places)))


def delivered_shares(ids: Ids, positions: range) -> list[int]:
    """The digests of one share in several steps: a row of `ids` holds those at `positions` of one step."""
    sums: list[int] = np.add.reduce(mix(ids.view(np.uint64) ^ _of_range(positions)), axis=1).tolist()
    return sums


def delivered_each(ids: Ids, batch: int) -> list[int]:
    """The digests of consecutive whole batches that lie one after the other; the last may be short."""
    places = np.resize(_of_range(range(batch)), len(ids))
    hashes = mix(ids.view(np.uint64) ^ places)
    sums: list[int] = np.add.reduceat(hashes, np.arange(0, len(ids), batch)).tolist()
    return sums


def chain(previous: str, step: int, digest: int, count: int) -> str:
    """The SHA-256 (hex) over all committed steps: `previous` (empty at first), then this step's numbers."""
    return hashlib.sha256(f"{previous} {step} {digest % 2**64:016x} {count}".encode()).hexdigest()


@lru_cache(maxsize=8)  # the same few shares come in every step
def _of_range(positions: range) -> NDArray[np.uint64]:
    return _of_places(np.arange(positions.start, positions.stop, positions.step, dtype=np.int64))


def _of_places(positions: Ids) -> NDArray[np.uint64]:
    """What tells equal ids at different positions apart."""
    return mix((positions.astype(np.uint64) + np.uint64(1)) * _STEP)
