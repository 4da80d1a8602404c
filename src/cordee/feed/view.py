"""How many rows of a chain are used, and how they come where it is iterated over by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.batch import Batch
from cordee.feed.late import change, late_of
from cordee.feed.order import Order
from cordee.feed.source import Source, Subset
from cordee.feed.steps.user import rows_in
from cordee.feed.store.opened import StoreSource

Self = TypeVar("Self", bound="Viewed")
LARGE_BYTES = 2**28
"""A set of so many bytes is read ahead by a thread: it may not lie in memory."""
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class View:
    """Which rows, in which order and size of batches."""

    most: int | None = None
    times: int = 1
    cached: bool = False
    seed: int | None = None
    """Of the shuffled order; None for that of the files."""
    epoch: int = 0
    batch: int | None = None
    ahead: bool | None = None

    @property
    def cuts(self) -> bool:
        """Whether the next step goes on from a store of what there is."""
        return self.cached or self.most is not None or self.times > 1

    def order(self, samples: int, batch: int) -> Order:
        """That of a training with this seed."""
        return Order(samples, batch, seed=self.seed or 0, shuffle="none" if self.seed is None else "full")


class Viewed(ABC):
    """What has a view, and gives others of itself."""

    @abstractmethod
    def viewed(self: Self, view: View) -> Self:
        """The same rows in another view."""

    @abstractmethod
    def looked(self) -> View:
        """The view."""

    def take(self: Self, count: int) -> Self:
        """So many rows, the first ones: of each set its part. Steps behind it see these alone."""
        return self.viewed(replace(self.looked(), most=_count("take", count)))

    def repeat(self: Self, times: int) -> Self:
        """The rows of the training set so many times."""
        return self.viewed(replace(self.looked(), times=_count("repeat", times) * self.looked().times))

    def cache(self: Self) -> Self:
        """Keep the rows as they are here in a store of their own: other steps behind it do not make them anew."""
        return self.viewed(replace(self.looked(), cached=True))

    def shuffle(self: Self, seed: int = 0, epoch: int = 0) -> Self:
        """Iterate in the order that a training with this seed has in this epoch; a job shuffles by itself."""
        return self.viewed(replace(self.looked(), seed=int(seed), epoch=int(epoch)))

    def batch(self: Self, size: int) -> Self:
        """Iterate in batches of so many rows, ready for a model; a job has a batch of its own."""
        return self.viewed(replace(self.looked(), batch=_count("batch", size)))

    def prefetch(self: Self, ahead: bool = True) -> Self:
        """Iterate with a thread that reads the next batch ahead; by itself it does so for large data."""
        return self.viewed(replace(self.looked(), ahead=ahead))


def in_view(source: Source, count: int, times: int) -> Source:
    """The first `count` samples of a source, so many times."""
    if count == len(source) and times == 1:
        return source
    return Subset(source, np.tile(np.arange(count, dtype=np.int64), times))


def batches_of(source: Source, view: View, size: int, nbytes: int) -> Iterator[Batch]:
    """Batches in new memory, transformed as in training."""
    order, late = view.order(len(source), size), late_of(source, training=True)

    def gathered(step: int) -> Batch:
        ids = order.ids(view.epoch, step)
        batch = Batch(ids, source.gather(ids))
        batch.epoch, batch.step = view.epoch, step
        return batch

    ahead = nbytes >= LARGE_BYTES if view.ahead is None else view.ahead
    if not ahead:
        for step in range(order.steps):
            yield change(gathered(step), late)
        return
    with ThreadPoolExecutor(1, "cordee-prefetch") as pool:
        following: Future[Batch] = pool.submit(gathered, 0)
        for step in range(order.steps):
            batch = following.result()
            if step + 1 < order.steps:
                following = pool.submit(gathered, step + 1)
            yield change(batch, late)


def rows_of_set(source: StoreSource, view: View, count: int, times: int) -> Iterator[dict[str, Any]]:
    """Each row as a dict; texts as such."""
    order = view.order(count * times, _ROWS_AT_ONCE)
    for step in range(order.steps):
        yield from rows_in(source.rows(order.ids(view.epoch, step) % count))


def _count(called: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(f"{called}({value!r}): a whole number of at least 1 was expected")
    return value
