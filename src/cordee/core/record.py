"""The record of a step: what all replicas agree on when it commits, as a value that is added up over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LIMBS = 8
"""A digest travels as eight bytes, each a small whole number, so that a float32 sum over 65,536 replicas is exact."""


class Record(NamedTuple):
    """One replica's numbers of a step, or their sum over all replicas."""

    loss: float
    """Each micro-batch's loss, a mean, times its weight."""
    weight: float
    stop: float
    """Wishes to stop."""
    asked: float
    """Workers that the launcher asked to stop."""
    save: float
    """Wishes for a checkpoint."""
    admit: float
    """Workers that know of one which waits to come in."""
    news: float
    """Workers whose buffers changed, where they had not so far."""
    uneven: float
    """Replicas whose speed is no longer that by which shares were balanced."""
    samples: float
    digest: int
    """Of the samples that were delivered."""

    def numbers(self) -> list[float]:
        """As they travel: small whole numbers stay exact."""
        return [*map(float, self[:-1]), *map(float, (self.digest % 2**64).to_bytes(LIMBS, "little"))]

    @classmethod
    def summed(cls, numbers: Sequence[float]) -> Record:
        """From the sums of what `numbers` gives on each replica."""
        digest = sum(int(limb) << (8 * place) for place, limb in enumerate(numbers[-LIMBS:])) % 2**64
        return cls._make([*numbers[:-LIMBS], digest])

    @property
    def mean_loss(self) -> float:
        """The loss of the global batch; 0 if that weighs nothing."""
        return self.loss / self.weight if self.weight else 0.0


SIZE = len(Record._fields) - 1 + LIMBS
"""How many numbers a record has."""
