"""The samples of the preflight: few, and those that make a difference first.

Columns of whole numbers that lie in memory are looked through for rare values: an ignored target among a thousand is
only found if a pass sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cordee.feed.batch import Batch, named_tensors
from cordee.feed.late import read
from cordee.feed.permute import Ids
from cordee.feed.source import Source, digest_of, map_tensors

MOST_SCANNED = 20_000_000
"""Numbers of a column in which rare values are looked for; certain values are looked for in all of them."""
MOST_KINDS = 4_096
"""A column with more different values holds no classes."""
TARGETS = ("y", "1", "label", "labels", "target", "targets")
"""Columns that are looked through before others."""
AHEAD = 16
"""Samples that most tests need: two batches of 8."""
FIRST = 3
"""Samples with rare values that stand first, where the interaction test exchanges them."""


class Samples:
    """A pool of samples, of which batches are made by their place in it."""

    def __init__(self, source: Source | None, ids: Ids, device: str, whole: Batch | None = None) -> None:
        """Samples of `source` are read when they are needed, `AHEAD` at first. `whole`: they were read already."""
        self.ids, self.device = ids, device
        self._source = source
        self._whole = whole if whole is not None else self._gather(ids[:AHEAD])
        lengths = {len(one) if one.dim() else -1 for _, one in named_tensors(self._whole.fields)}
        self.divisible = lengths == {len(self._whole)}
        """Whether rows are samples; a collate function may make something else of a batch."""

    def __len__(self) -> int:
        """How many samples are in the pool."""
        return len(self.ids)

    def batch(self, places: Sequence[int]) -> Batch:
        """The samples at these places of the pool."""
        chosen = np.asarray(places, dtype=np.int64)
        if not self.divisible:
            return self._gather(self.ids[chosen])
        if chosen.max(initial=0) >= len(self._whole):
            self._whole = self._gather(self.ids)
        # Cut from what was read once: a data set that draws at random gives other samples each time.
        rows = map_tensors(lambda one: one[torch.from_numpy(chosen).to(one.device)], self._whole.fields)
        batch = Batch(self.ids[chosen], rows)
        batch.epoch, batch.step = self._whole.epoch, self._whole.step
        return batch

    def _gather(self, ids: Ids) -> Batch:
        assert self._source is not None
        return read(self._source, ids, self.device)


def choose(source: Source, usual: Ids, telling: Iterable[int] = ()) -> Ids:
    """As many ids as `usual` has: samples with one of the `telling` values first, then rare ones, then the usual."""
    traits = source.traits
    named = sorted(traits.table.columns() if traits.table is not None else (), key=lambda one: one[0] not in TARGETS)
    # Whole numbers that lie in memory, but not the bytes of images.
    whole = [one for _, one in named if one.dtype.kind in "iu" and (one.dtype.itemsize > 1 or one.ndim == 1)]
    columns = whole if traits.rows is None else [one[traits.rows] for one in whole]
    first: list[int] = []
    for value in telling:
        for column in columns:
            first += np.flatnonzero((column == value).reshape(len(column), -1).any(1))[:1].tolist()
    for column in columns:
        first += _rare(column)
    first = list(dict.fromkeys(first))[: max(FIRST, len(usual) // 4)]
    rest = [one for one in usual.tolist() if one not in set(first)]
    # Behind the first ones stand usual samples, so that what they are exchanged for is something else.
    chosen = [*first[:FIRST], *rest[: 2 * FIRST], *first[FIRST:], *rest[2 * FIRST :]]
    return np.asarray(chosen[: len(usual)], dtype=np.int64)


def _rare(column: NDArray[Any]) -> list[int]:
    """Of the smallest and the largest value, and of each of the rarest classes, the id of one sample."""
    flat = column.reshape(-1)[:MOST_SCANNED]
    each = max(1, column.size // len(column))
    places = [int(flat.argmin()), int(flat.argmax())]  # what stands for nothing is often -1 or -100
    least, most = int(flat[places[0]]), int(flat[places[1]])
    if 0 < most - least < 100 * MOST_KINDS:
        counts = np.bincount(flat.astype(np.int64) - least)
        present = np.flatnonzero(counts)
        if len(present) <= MOST_KINDS:
            rarest = present[np.argsort(counts[present], kind="stable")][:4]
            places = [*(int(np.argmax(flat == value + least)) for value in rarest), *places]
    return [place // each for place in places]


def digest_samples(source: Source, ids: Ids) -> str:
    """Of these samples, their ids and what they hold."""
    fields = [one.detach().contiguous() for _, one in named_tensors(source.gather(ids))]
    words = [f"{tuple(one.shape)} {one.dtype}".encode() for one in fields]
    return digest_of([ids, *words, *(one.reshape(-1).view(torch.uint8).cpu().numpy() for one in fields if one.numel())])
