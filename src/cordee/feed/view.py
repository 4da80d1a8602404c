"""How many rows of a chain are used, and how they come where it is iterated over by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
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
T = TypeVar("T")
LARGE_BYTES = 2**28
"""A set of so many bytes is read ahead by a thread: it may not lie in memory."""
LIKE_A_BUFFER = 100
"""What other libraries have as the argument of shuffle is at least so large."""
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

    view: View

    @abstractmethod
    def viewed(self: Self, view: View) -> Self:
        """The same rows in another view."""

    @abstractmethod
    def _cut(self: Self) -> Self:
        """What goes on from a store of the rows as they are here."""

    def take(self: Self, count: int) -> Self:
        """So many rows, the first ones: of each set its part. Steps behind it see these alone."""
        view = self._of_rows("take", _count("take", count))
        if view.times > 1:  # the first rows of the copies
            return self._cut().take(count)
        return self.viewed(replace(view, most=count if view.most is None else min(count, view.most)))

    def repeat(self: Self, times: int) -> Self:
        """The rows of the training set so many times."""
        view = self._of_rows("repeat", _count("repeat", times))
        return self.viewed(replace(view, times=times * view.times))

    def cache(self: Self) -> Self:
        """Keep the rows as they are here in a store of their own: other steps behind it do not make them anew."""
        return self.viewed(replace(self.view, cached=True))

    def shuffle(self: Self, number: int | None = None, /, *, seed: int = 0, epoch: int = 0) -> Self:
        """Iterate in the order that a training with this seed has in this epoch; a job shuffles by itself.

        All rows are shuffled; there is no buffer. `shuffle(7)` is short for `shuffle(seed=7)`.
        """
        if number is not None and abs(number) >= LIKE_A_BUFFER:
            raise DataError(
                f"shuffle({number}): this is no size of a buffer, as all rows are shuffled, however many there are: "
                f"write shuffle(). A seed is given as shuffle(seed={number})"
            )
        view = self.view
        if view.batch is not None:
            raise DataError(
                f"shuffle after batch: rows are shuffled, not batches. Write .shuffle(...).batch({view.batch})"
            )
        return self.viewed(replace(view, seed=int(seed if number is None else number), epoch=int(epoch)))

    def batch(self: Self, size: int) -> Self:
        """Iterate in batches of so many rows, ready for a model; a job has a batch of its own."""
        view = self.view
        if view.batch is not None:
            raise DataError(f"batch({size}) after batch({view.batch}): give one size")
        return self.viewed(replace(view, batch=_count("batch", size)))

    def prefetch(self: Self, ahead: bool = True) -> Self:
        """Iterate with a thread that reads ahead; by itself it does so for batches of large data."""
        return self.viewed(replace(self.view, ahead=ahead))

    def _of_rows(self, called: str, count: int) -> View:
        """The view, for what counts rows: it comes before their order and their batches."""
        view = self.view
        if view.batch is not None:
            rows = count * view.batch if called == "take" else count
            raise DataError(
                f"{called}({count}) after batch({view.batch}): it is for rows, not for batches. Write "
                f".{called}({rows}).batch({view.batch})"
            )
        if view.seed is not None:
            raise DataError(
                f"{called}({count}) after shuffle: take and repeat come before shuffle. Write "
                f".{called}({count}).shuffle(...); sample(fraction) draws rows at random"
            )
        return view


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
        batch.seed, batch.epoch, batch.step = order.seed, view.epoch, step
        return batch

    ahead = nbytes >= LARGE_BYTES if view.ahead is None else view.ahead
    for batch in _in_turn(gathered, order.steps, ahead=ahead):
        yield change(batch, late)


def rows_of_set(source: StoreSource, view: View, count: int, times: int) -> Iterator[dict[str, Any]]:
    """Each row as a dict; texts as such."""
    order = view.order(count * times, _ROWS_AT_ONCE)

    def read(step: int) -> list[dict[str, Any]]:
        return list(rows_in(source.rows(order.ids(view.epoch, step) % count)))

    for rows in _in_turn(read, order.steps, ahead=bool(view.ahead)):
        yield from rows


def _in_turn(get: Callable[[int], T], steps: int, *, ahead: bool) -> Iterator[T]:
    """What `get` gives for each step; with `ahead` by a thread, which gets the next one meanwhile."""
    if not ahead:
        yield from map(get, range(steps))
        return
    with ThreadPoolExecutor(1, "cordee-prefetch") as pool:
        following: Future[T] = pool.submit(get, 0)
        for step in range(steps):
            found = following.result()
            if step + 1 < steps:
                following = pool.submit(get, step + 1)
            yield found


def _count(called: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(f"{called}({value!r}): a whole number of at least 1 was expected")
    return value
