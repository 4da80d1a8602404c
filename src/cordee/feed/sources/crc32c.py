"""CRC-32C (Castagnoli) of many pieces of a buffer at once, as TFRecord files carry it; zlib has only another CRC.

A CRC is linear: that of two pieces put together is that of the first, moved over the length of the second, xor that of
the second. So each 8 bytes are looked up by themselves, all at once, and neighbours are put together in a tree. Zeros
in front change nothing, which makes pieces of any length multiples of a block. Where `google_crc32c` or `crc32c` is
installed, that is used: it takes the processor's own instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.feed.permute import Ids

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_HALF = np.uint32(16)
_LOW = np.uint32(0xFFFF)
_ONES = np.uint32(0xFFFFFFFF)
_MASK_SHIFTS = np.uint32(15), np.uint32(17)
_MASK_DELTA = np.uint32(0xA282EAD8)
_TILE = 1 << 17
"""Words of 8 bytes that are looked up at once: what that takes stays near a core."""


def masked(values: Words) -> Words:
    """As files carry them: a CRC of data that holds a CRC would tell little."""
    low, high = _MASK_SHIFTS
    result: Words = (values >> low | values << high) + _MASK_DELTA
    return result


def crcs(buffer: Bytes, starts: Ids, lengths: Ids) -> Words:
    """The CRC-32C of each piece of a buffer."""
    if (fast := _installed()) is not None:
        whole = buffer.data
        edges = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        return np.fromiter((fast(bytes(whole[start:stop])) for start, stop in edges), np.uint32, len(starts))
    return crcs_here(buffer, starts, lengths)


def crcs_here(buffer: Bytes, starts: Ids, lengths: Ids) -> Words:
    """The same, by NumPy alone."""
    if not len(starts):
        return np.zeros(0, np.uint32)
    block = _block(lengths)
    blocks = -(-lengths // block)
    ends = np.cumsum(blocks) * block
    padded = np.zeros(int(ends[-1]), np.uint8)
    for start, length, end in zip(starts.tolist(), lengths.tolist(), ends.tolist(), strict=True):
        padded[end - length : end] = buffer[start : start + length]
    whole = lengths >= 4
    # A CRC begins with ones: the same as other first bytes, and a beginning with zeros.
    firsts = (ends - lengths)[whole, None] + np.arange(4)
    padded[firsts] ^= np.uint8(0xFF)
    result = ~_joined(_of_blocks(padded, block), blocks, block)
    for place in np.flatnonzero(~whole).tolist():
        start = int(starts[place])
        result[place] = _of_few(bytes(buffer[start : start + int(lengths[place])]))
    return result


def _block(lengths: Ids) -> int:
    """Bytes of a block, a power of two: little is padded, and few blocks make a piece."""
    wanted = max(int(lengths.mean()) // 4, int(lengths.max()) // 256, 8)
    return min(1 << (wanted - 1).bit_length(), 1 << 16)


def _of_blocks(padded: Bytes, block: int) -> Words:
    """The CRC of each block of bytes, as if it began with zeros."""
    halves = padded.view("<u2").reshape(-1, 4)
    tables = [_moved(8 - 2 * place, 0) for place in range(4)]
    found = np.empty(len(halves), np.uint32)
    for at in range(0, len(halves), _TILE):
        tile = halves[at : at + _TILE]
        part = tables[0][tile[:, 0]]
        for place in range(1, 4):
            part ^= tables[place][tile[:, place]]
        found[at : at + _TILE] = part
    size = 8
    while size < block:
        found = _over(found[0::2], size) ^ found[1::2]
        size *= 2
    return found


def _joined(parts: Words, blocks: Ids, block: int) -> Words:
    """The CRC of each piece, of those of its blocks."""
    ends = np.cumsum(blocks)
    result = np.zeros(len(blocks), np.uint32)
    most = int(blocks.max(initial=0))
    for left in range(most, 0, -1):  # the pieces with so many blocks or more, each the one so far from its end
        has = blocks >= left if left > int(blocks.min()) else slice(None)
        result[has] = _over(result[has], block) ^ parts[ends[has] - left]
    return result


def _over(values: Words, size: int) -> Words:
    """CRCs moved over `size` bytes, as if so many zeros came after what they are of."""
    low, high = _moved(size, 0), _moved(size, 1)
    moved: Words = low[values & _LOW] ^ high[values >> _HALF]
    return moved


@lru_cache(maxsize=64)  # 256 KiB each; a power of two in bytes, so about 40
def _moved(size: int, half: int) -> Words:
    """What each value of the low (0) or high (1) 16 bits becomes when it is moved over so many bytes."""
    bits = _basis(size)[16 * half : 16 * half + 16]
    table = np.zeros(1, np.uint32)
    for bit in bits:
        table = np.concatenate([table, table ^ np.uint32(bit)])
    return table


@lru_cache(maxsize=64)
def _basis(size: int) -> tuple[int, ...]:
    """What each of the 32 bits becomes when it is moved over so many bytes."""
    if size == 1:
        return tuple(_byte_over(1 << bit) for bit in range(32))
    once = _basis(size // 2)
    twice = tuple(_apply(once, value) for value in once)
    return twice if size % 2 == 0 else tuple(_apply(_basis(1), value) for value in twice)


def _apply(basis: tuple[int, ...], value: int) -> int:
    result = 0
    for bit, image in enumerate(basis):
        if value >> bit & 1:
            result ^= image
    return result


def _byte_over(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


def _of_few(data: bytes) -> int:
    """The CRC of a piece of any length, byte by byte."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _byte_over(value ^ byte)
    return value ^ 0xFFFFFFFF


@lru_cache(maxsize=1)
def _installed() -> Callable[[bytes], int] | None:
    """The function of a package that computes it, if there is one."""
    found: Any
    try:
        import google_crc32c

        found = google_crc32c.value
    except ImportError:
        try:
            import crc32c

            found = crc32c.crc32c
        except ImportError:
            return None
    return found  # type: ignore[no-any-return]
