"""Seeded permutations by index arithmetic: any part of one is computed without the rest of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""Sample ids, or places in an order: whole numbers from 0."""

TABLE_LIMIT = 65_536
"""Up to this size a permutation is a table of 2 bytes an entry: arithmetic on so few values is slower and biased."""

LARGEST = 2**62
"""More samples than this would overflow the arithmetic."""

_ROUNDS = 6
_CHUNK = 8_192  # three scratch arrays of 64 KiB stay in a core's own cache
SPREAD = np.uint64(0x9E3779B97F4A7C15)  # odd, from the golden ratio: neighbours land far from each other
_STIR = np.uint64(0xD6E8FEB86659FD93)  # odd, a known good multiplier between two xor-shifts
_HALF = np.uint64(32)
_MIX_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_MIX_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_NUMBER_BITS = np.uint64(TABLE_LIMIT - 1)


Permutation = Callable[[Ids], Ids]
"""A bijection of 0 .. n-1: what stands at the places asked for, each of which is in 0 .. n-1."""


@lru_cache(maxsize=8)  # at most 8 tables: 1 MiB
def permutation(n: int, purpose: str, *numbers: int) -> Permutation:
    """The permutation of 0 .. n-1 that belongs to `purpose` and `numbers` (a seed, an epoch): always the same one."""
    if not 0 < n < LARGEST:
        raise ValueError(f"a permutation of {n} values is not possible: 1 to 2**62 - 1 are")
    if n <= TABLE_LIMIT:
        return _Table(n, random_bits(1, purpose, *numbers)[0])
    return _Network(n, random_bits(_ROUNDS, purpose, *numbers))


def random_bits(words: int, purpose: str, *numbers: int) -> tuple[int, ...]:
    """`words` 64-bit numbers that depend on `purpose` and `numbers` alone, alike on every machine."""
    text = purpose + "".join(f",{int(number)}" for number in numbers)
    raw = hashlib.shake_128(text.encode()).digest(8 * words)
    return tuple(int.from_bytes(raw[at : at + 8], "little") for at in range(0, 8 * words, 8))


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit values over all 64-bit values, one to one (the finish of splitmix64)."""
    values = values ^ (values >> _MIX_SHIFTS[0])
    values *= _MIX_FACTORS[0]
    values ^= values >> _MIX_SHIFTS[1]
    values *= _MIX_FACTORS[1]
    values ^= values >> _MIX_SHIFTS[2]
    return values


class _Table:
    """Sorts 0 .. n-1 by random keys. Our own keys, because numpy may change its generators between versions."""

    def __init__(self, n: int, seed: int) -> None:
        numbers = np.arange(n, dtype=np.uint64)
        keys = mix((numbers + np.uint64(1)) * SPREAD + np.uint64(seed))
        # 48 random bits, then the number: a plain sort, which is several times faster than argsort, and has no ties.
        keys &= ~_NUMBER_BITS
        keys |= numbers
        keys.sort()
        self._table = (keys & _NUMBER_BITS).astype(np.uint16)

    def __call__(self, places: Ids) -> Ids:
        ids: Ids = self._table[places].astype(np.int64)
        return ids


class _Network:
    """A Feistel network on pairs (left, right) of a grid that is barely larger than n.

    left < a and right < b with a * b >= n > a * b - a, so that fewer than one value in sqrt(n) lands outside 0 .. n-1
    and is sent through the network again until it lands inside (cycle walking): still one to one.
    """

    def __init__(self, n: int, keys: tuple[int, ...]) -> None:
        self._n = n
        self._a = math.isqrt(n) + 1
        self._b = -(-n // self._a)
        self._keys = tuple(np.uint64(key) for key in keys)

    def __call__(self, places: Ids) -> Ids:
        result = np.empty(len(places), dtype=np.int64)
        for at in range(0, len(places), _CHUNK):
            part = self._through(places[at : at + _CHUNK])
            outside = np.flatnonzero(part >= self._n)
            while len(outside):
                part[outside] = self._through(part[outside])
                outside = outside[part[outside] >= self._n]
            result[at : at + _CHUNK] = part
        return result

    def _through(self, places: Ids) -> Ids:
        a, b = np.uint64(self._a), np.uint64(self._b)
        right = places.astype(np.uint64)
        left = right // b
        right -= left * b
        scratch = np.empty_like(left)
        for index, key in enumerate(self._keys):
            if index % 2 == 0:
                _add_round(left, right, a, key, scratch)
            else:
                _add_round(right, left, b, key, scratch)
        left *= b
        left += right
        ids: Ids = left.view(np.int64)
        return ids


def _add_round(
    half: NDArray[np.uint64], other: NDArray[np.uint64], size: np.uint64, key: np.uint64, scratch: NDArray[np.uint64]
) -> None:
    """Set half to (half + f(other)) mod size; f is a keyed hash brought to 0 .. size-1 without a division."""
    np.multiply(other, SPREAD, out=scratch)
    scratch += key
    scratch ^= scratch >> _HALF
    scratch *= _STIR
    scratch >>= _HALF
    scratch *= size  # below 2**32 * 2**31
    scratch >>= _HALF
    half += scratch
    # Unsigned: half - size wraps to a huge number exactly when half < size, so the minimum is half mod size.
    np.subtract(half, size, out=scratch)
    np.minimum(half, scratch, out=half)
