"""Who computes which samples of a global batch: a pure function that every worker evaluates alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from cordee.feed.locality import Held, local_owners
from cordee.feed.permute import Ids, mix, random_bits


@dataclass(frozen=True)
class Share:
    """How a batch is cut over workers; a share may be empty. The plan has checked rule and proportions.

    `equal`: sizes differ by at most one. `proportional`: sizes by largest remainder. `sampled`: every sample goes to a
    worker drawn at random. `local`: sizes as above, and each worker prefers samples that its host holds. `proportions`
    belong to worker ids, so that they still fit when some workers are gone; a worker without one counts as the mean of
    those that are there. `sampled` draws by them if there are any. Where several workers compute a share together,
    their `Mesh.numbers` stand for worker ids.
    """

    rule: str = "equal"
    proportions: tuple[float, ...] = ()
    seed: int = 0

    @property
    def in_runs(self) -> bool:
        """Whether each worker computes consecutive positions, the same ones in all batches of one size."""
        return self.rule in ("equal", "proportional")

    def positions(
        self, size: int, workers: Sequence[int], index: int, key: tuple[int, ...] = (), held: Held | None = None
    ) -> range | Ids:
        """The positions of a batch of `size` samples that the worker at `index` of `workers` computes.

        `workers` are the ids of those that are there, `key` says which batch it is (epoch, step, ...), `held` which
        hosts hold its samples, where that is known. Over all workers every position comes exactly once.
        """
        if self.rule == "sampled":
            return np.flatnonzero(self._owners(size, workers, key) == index).astype(np.int64, copy=False)
        sizes = _largest_remainder(size, self._weights(workers))
        if self.rule == "local" and held is not None:
            return np.flatnonzero(local_owners(held, sizes) == index).astype(np.int64, copy=False)
        start = sum(sizes[:index])
        return range(start, start + sizes[index])

    def fractions(self, workers: Sequence[int]) -> list[float]:
        """How much of a batch each of these workers computes, as far as that is the same for all batches."""
        weights = self._weights(workers)
        return [weight / sum(weights) for weight in weights]

    def _weights(self, workers: Sequence[int]) -> tuple[float, ...]:
        if not self.proportions:
            return (1.0,) * len(workers)
        known = self.proportions
        named = [known[worker] for worker in workers if worker < len(known)]
        mean = sum(named) / len(named) if named else 1.0
        weights = tuple(float(known[worker]) if worker < len(known) else mean for worker in workers)
        # Only workers that were to get nothing are left: so all of them compute.
        return weights if sum(weights) else (1.0,) * len(workers)

    def _owners(self, size: int, workers: Sequence[int], key: tuple[int, ...]) -> Ids:
        """For every position the index of the worker that was drawn for it."""
        weights = np.cumsum(self._weights(workers))
        start, stride = (np.uint64(word) for word in random_bits(2, "share", self.seed, *key))
        bits = mix(np.arange(size, dtype=np.uint64) * (stride | np.uint64(1)) + start)
        draws = (bits >> np.uint64(11)) * (weights[-1] / 2.0**53)  # 53 bits: exact as float64
        owners: Ids = np.searchsorted(weights, draws, side="right").astype(np.int64, copy=False)
        last = int(np.searchsorted(weights, weights[-1], side="left"))  # a draw rounded up to the very end
        owners[owners > last] = last
        return owners


@dataclass(frozen=True)
class Shares:
    """How each step is cut: every entry is a first step, counted over all epochs, and the share from there on.

    All workers have to hold the same value. Then each sample of a step is computed once, whatever the shares are.
    """

    entries: tuple[tuple[int, Share], ...] = ((0, Share()),)

    def at(self, step: int) -> Share:
        """How this step is cut."""
        return next(share for first, share in reversed(self.entries) if first <= step)

    def unchanged(self, step: int, most: int) -> int:
        """How many steps from this one on are cut alike, at most so many."""
        return min([most, *(first - step for first, _ in self.entries if first > step)])

    def changed(self, first_step: int, share: Share, now: int = 0) -> Shares:
        """Another share from `first_step` on, in place of those that were to begin there or later.

        Those that are over before step `now` are dropped.
        """
        kept = [one for one in self.entries if one[0] < first_step]
        ends = [first for first, _ in kept[1:]] + [first_step]
        return Shares((*(one for one, end in zip(kept, ends, strict=True) if end > now), (first_step, share)))

    def to_list(self) -> list[Any]:
        """In a form that a file or a message gives back as it was."""
        return [[first, share.rule, list(share.proportions), share.seed] for first, share in self.entries]

    @classmethod
    def from_list(cls, entries: Sequence[Any]) -> Shares:
        """What `to_list` made a list of."""
        return cls(tuple((first, Share(rule, tuple(parts), seed)) for first, rule, parts, seed in entries))


@lru_cache(maxsize=64)
def _largest_remainder(size: int, weights: tuple[float, ...]) -> tuple[int, ...]:
    """Cut `size` by weights: whole parts first, what is left over to the largest remainders (ties: the earlier one)."""
    exact = [Fraction(repr(weight)) for weight in weights]
    total = sum(exact)
    quotas = [size * weight / total for weight in exact]
    sizes = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda index: sizes[index] - quotas[index])
    for index in by_remainder[: size - sum(sizes)]:
        sizes[index] += 1
    return tuple(sizes)
