"""Where a row comes from, as one number: what is random about the row is a function of a seed and of this."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.feed.columns import Column, Ragged
from cordee.feed.permute import SPREAD, mix, random_bits

Words = NDArray[np.uint64]
_ONE = np.uint64(1)
_PLACE = np.uint64(256)
_EXACT = 2.0**53
"""Below it float64 holds every whole number."""
_ABOVE, _BELOW = (np.uint64(random_bits(1, f"whole {sign}")[0]) for sign in ("above", "below"))


def origins_of(key: str, start: int, count: int) -> Words:
    """Of `count` rows of a file from row `start` on: 64 bits each, of the file's key and the row's number alone."""
    word = np.uint64(random_bits(1, f"origin {key}")[0])
    return mix((np.arange(start, start + count, dtype=np.uint64) + _ONE) * SPREAD + word)


def children_of(origins: Words, number: NDArray[np.int64]) -> Words:
    """Of rows made of rows: the first one made of a row has its origin, others have their own."""
    other = mix(origins + number.astype(np.uint64) * SPREAD)
    return np.where(number == 0, origins, other)


def draws_of(origins: Words, purpose: str, seed: int) -> NDArray[np.float64]:
    """A number evenly from [0, 1) for each row: of purpose, seed and origin alone."""
    key = np.uint64(random_bits(1, purpose, seed)[0])
    draws: NDArray[np.float64] = (mix((origins ^ key) * SPREAD + key) >> np.uint64(11)) * 2.0**-53
    return draws


def word_of(text: str) -> int:
    """A text as 64 bits, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def words_of(column: Column, seed: int = 0) -> Words:
    """The value of each entry as 64 bits, the same everywhere: equal values, equal bits. Texts or single numbers."""
    key = np.uint64(random_bits(1, "value", seed)[0])
    if isinstance(column, Ragged):
        return mix(_summed(column) ^ key)
    numbers = column.astype(np.float64) + 0.0  # whole numbers as such, whatever they are kept as; all zeros alike
    numbers[np.isnan(numbers)] = np.nan
    words = numbers.view(np.uint64)
    if (large := np.abs(numbers) >= _EXACT).any():
        words[large] = _whole(column[large])
    return mix(words * SPREAD ^ key)


def _whole(column: NDArray[Any]) -> Words:
    """Whole numbers that float64 does not tell apart, bit by bit; floats beyond 64 bits as they are."""
    words = column.astype(np.float64).view(np.uint64)
    fits = np.True_ if column.dtype.kind != "f" else (column >= -(2.0**63)) & (column < 2.0**64)
    below, above = fits & (column < 0), fits & (column > 0)
    words[below] = mix(column[below].astype(np.int64).view(np.uint64) ^ _BELOW)
    words[above] = mix(column[above].astype(np.uint64) ^ _ABOVE)
    return words


def _summed(column: Ragged) -> Words:
    """Each byte at its place in the entry stirred by itself, then added up: no loop over entries."""
    lengths = np.diff(column.offsets)
    first = np.repeat(column.offsets[:-1], lengths)
    values = column.values[int(column.offsets[0]) : int(column.offsets[-1])]
    places = np.arange(len(values), dtype=np.int64) + int(column.offsets[0]) - first
    stirred = mix((places.astype(np.uint64) * _PLACE + values.astype(np.uint64) + _ONE) * SPREAD)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(stirred, dtype=np.uint64)])
    edges = column.offsets - int(column.offsets[0])
    words: Words = sums[edges[1:]] - sums[edges[:-1]] + lengths.astype(np.uint64)
    return words
