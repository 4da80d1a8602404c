"""CRC-32 of bytes that follow one another, from the checksums of both: a file's head is known after its rows."""

from __future__ import annotations

from functools import lru_cache

_ONE, _TWICE, _POLYNOMIAL = 1 << 31, 1 << 30, 0xEDB88320
"""Polynomials over bits, the highest power in the lowest bit: 1, x, and what all is taken modulo."""


def joined_crc(first: int, second: int, length: int) -> int:
    """Of the bytes of both, if `second` is of the last `length` ones: those of the first move up by so many."""
    return _product(_moved(8 * length), first) ^ second


@lru_cache(64)
def _moved(bits: int) -> int:
    """The power of x with this exponent."""
    power, square = _ONE, _TWICE
    while bits:
        if bits & 1:
            power = _product(power, square)
        square = _squared(square)
        bits >>= 1
    return power


@lru_cache(64)
def _squared(one: int) -> int:
    return _product(one, one)


def _product(one: int, other: int) -> int:
    product, bit = 0, _ONE
    while bit:
        if one & bit:
            product ^= other
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
        bit >>= 1
    return product
