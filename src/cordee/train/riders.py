"""The few numbers that all workers add up with each gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LIMBS = 8
"""A digest travels as eight bytes, each a small whole number, so that a float32 sum over 65,536 replicas is exact."""


def to_limbs(digest: int) -> list[float]:
    """A 64-bit digest as numbers that add up exactly."""
    return [*map(float, digest.to_bytes(LIMBS, "little"))]


def from_limbs(limbs: Sequence[float]) -> int:
    """The sum of digests, modulo 2**64, from the sums of their limbs."""
    return sum(int(limb) << (8 * place) for place, limb in enumerate(limbs)) % 2**64


class Riders(NamedTuple):
    """The few numbers that ride along with a gradient, added up over all workers."""

    loss: float
    stop: float
    """Wishes to stop."""
    asked: float
    """Workers that the launcher asked to stop."""
    save: float
    """Wishes for a checkpoint."""
    news: float
    """Workers whose buffers changed, where they had not so far."""
    samples: float
    digest: int
    """Of the samples."""

    def numbers(self) -> list[float]:
        """As they travel: small whole numbers stay exact."""
        return [*map(float, self[:-1]), *to_limbs(self.digest % 2**64)]

    @classmethod
    def summed(cls, numbers: Sequence[float]) -> Riders:
        """What has come of everybody's."""
        loss, stop, asked, save, news, samples = numbers[:-LIMBS]
        return cls(loss, stop, asked, save, news, samples, from_limbs(numbers[-LIMBS:]))
