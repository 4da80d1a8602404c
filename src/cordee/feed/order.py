"""Which samples a step holds: a pure function of seed, epoch and step (law 1); and a proof that they were delivered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import JobError
from cordee.feed.permute import SPREAD, Ids, mix, permutation, random_bits

SHUFFLES = ("full", "blocks", "none")
"""The ways to order a pass over the data."""

_CHUNK = 8_192  # places worked on at once, so that scratch memory is small and stays in a core's cache


@dataclass(frozen=True)
class Order:
    """The order in which samples are used, the same for any number of workers.

    `shuffle="full"` permutes all samples in every epoch. `"blocks"` is for data that is far away: blocks of `block`
    consecutive samples are permuted, then the samples within each window of `window` blocks. `"none"` keeps the order
    of the source. With `steps_per_epoch` the data is endless: passes follow one another without a gap, a batch may lie
    across two of them, and none is short.
    """

    samples: int
    batch: int
    seed: int = 0
    shuffle: str = "full"
    drop_last: bool = False
    block: int = 1024
    window: int = 16
    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        """Refuse what has no meaning, naming field and value."""
        for name in ("samples", "batch", "block", "window", "steps_per_epoch"):
            value = getattr(self, name)
            if value is None and name == "steps_per_epoch":
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise JobError(f"{name}={value!r}: a whole number of at least 1 is needed")
        if not isinstance(self.seed, int | np.integer):
            raise JobError(f"seed={self.seed!r}: a whole number is needed")
        if self.shuffle not in SHUFFLES:
            raise JobError(f"shuffle={self.shuffle!r} is not known: choose one of {', '.join(SHUFFLES)}")
        if self.drop_last and self.steps_per_epoch is None and self.batch > self.samples:
            raise JobError(
                f"batch={self.batch} with drop_last=True leaves no step, as there are only {self.samples} samples: "
                "choose a smaller batch or keep the short last one"
            )

    @cached_property
    def steps(self) -> int:
        """How many steps an epoch has."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        return self.samples // self.batch if self.drop_last else -(-self.samples // self.batch)

    def size(self, step: int) -> int:
        """How many samples the global batch of `step` (of any epoch) holds: only the last one may be short."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} is not in this epoch of {self.steps} steps")
        if self.steps_per_epoch is not None:
            return self.batch
        return min(self.batch, self.samples - step * self.batch)

    def ids(self, epoch: int, step: int) -> Ids:
        """The samples of the global batch of `step`."""
        return self.span(epoch, range(step, step + 1))

    def span(self, epoch: int, steps: range) -> Ids:
        """The samples of consecutive steps of an epoch, one batch after the other, for the price of one call."""
        if epoch < 0:
            raise IndexError(f"epoch {epoch} does not exist: epochs count from 0")
        places = np.arange((steps[-1] - steps[0]) * self.batch + self.size(steps[-1]), dtype=np.int64)
        if self.steps_per_epoch is None:
            return self._of_pass(epoch, steps[0] * self.batch + places)
        first, place = divmod((epoch * self.steps_per_epoch + steps[0]) * self.batch, self.samples)
        passes, places = np.divmod(place + places, self.samples)
        for run, later in _runs(passes):
            places[run] = self._of_pass(first + later, places[run])
        return places

    def describe(self) -> dict[str, int | str | bool | None]:
        """What a checkpoint must hold to find this order again (with epoch and step: the position in the data)."""
        values = asdict(self).items()
        return {"form": 2, **{name: int(one) if isinstance(one, np.integer) else one for name, one in values}}

    def _of_pass(self, number: int, places: Ids) -> Ids:
        """What stands at `places` of pass `number` over the data."""
        if self.shuffle == "none":
            return places
        if self.shuffle == "full":
            return permutation(self.samples, "full", self.seed, number)(places)
        ids = np.empty_like(places)
        for at in range(0, len(places), _CHUNK):
            ids[at : at + _CHUNK] = self._of_blocks(number, places[at : at + _CHUNK])
        return ids

    def _of_blocks(self, number: int, places: Ids) -> Ids:
        """Blocks in a random sequence, `window` of them to a window, samples permuted within each window.

        What is left over by whole blocks comes last. The first block begins at another sample in every pass, so that
        these are not always the same samples.
        """
        block, span = self.block, self.window * self.block
        whole = self.samples // block
        places = places.copy()
        for run, at in _runs(places // span):
            length = min(span, self.samples - at * span)
            places[run] = at * span + permutation(length, "window", self.seed, number, at)(places[run] - at * span)
        slots, ids = np.divmod(places, block)
        if whole:
            in_whole = slots < whole
            slots[in_whole] = permutation(whole, "blocks", self.seed, number)(slots[in_whole])
        start = block * (random_bits(1, "start", self.seed, number)[0] % (whole + 1))
        ids += slots * block + start
        ids %= self.samples
        return ids


def _runs(values: Ids) -> Iterator[tuple[slice, int]]:
    """Where equal values stand next to one another, and which value it is."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    for start, stop in pairwise(edges):
        if stop > start:
            yield slice(start, stop), int(values[start])


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
    return mix((positions.astype(np.uint64) + np.uint64(1)) * SPREAD)
