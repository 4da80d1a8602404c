"""From a position in the training to this worker's samples: order, share and loader put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cordee.feed.loader import Batch, Loader
from cordee.feed.order import Order
from cordee.feed.share import Share
from cordee.feed.source import Source
from cordee.group.rope import Rope


class Slot(NamedTuple):
    """One micro-batch of the training: the unit that is cut into shares."""

    epoch: int
    step: int
    """Within the epoch."""
    micro: int = 0


class Feeder:
    """This worker's share of every micro-batch, gathered ahead of time."""

    def __init__(
        self, source: Source, order: Order, share: Share, rope: Rope, *, accumulate: int = 1, device: str = "cpu"
    ) -> None:
        """Nothing is read before the first `take`."""
        self.order = order
        self.share = share
        self.rope = rope
        self.accumulate = accumulate
        self._loader = Loader(source, device=device, depth=accumulate + 1)
        self._asked: dict[Slot, tuple[range | np.ndarray, bool]] = {}

    def micros(self, step: int) -> int:
        """How many micro-batches a step is computed in; none of them is empty."""
        return 1 if self.accumulate == 1 else max(1, min(self.accumulate, self.order.size(step)))

    def window(self, slot: Slot) -> range:
        """The positions of the global batch that a micro-batch holds: the same for any number of workers."""
        size, micros = self.order.size(slot.step), self.micros(slot.step)
        return range(size * slot.micro // micros, size * (slot.micro + 1) // micros)

    def after(self, slot: Slot) -> Slot:
        """The slot that follows, over the end of the epoch too."""
        if slot.micro + 1 < self.micros(slot.step):
            return Slot(slot.epoch, slot.step, slot.micro + 1)
        if slot.step + 1 < self.order.steps:
            return Slot(slot.epoch, slot.step + 1)
        return Slot(slot.epoch + 1, 0)

    def take(self, slot: Slot, *, ahead: bool = True) -> Batch:
        """My share of this slot's samples; an empty share borrows the first sample of the micro-batch."""
        self._ask(slot)
        positions, borrowed = self._asked.pop(slot)
        batch = self._loader.take(slot)
        batch.epoch, batch.step, batch.positions = slot.epoch, slot.step, positions
        batch.borrowed = borrowed
        batch.weight = 0.0 if borrowed else float(len(positions))
        if ahead:
            self._ask(self.after(slot))
        return batch

    def forget(self) -> None:
        """The members have changed: what was gathered ahead is cut wrongly."""
        self._asked.clear()
        self._loader.cancel()

    def close(self) -> None:
        """Stop gathering."""
        self._loader.close()

    def _ask(self, slot: Slot) -> None:
        if slot in self._asked:
            return
        window = self.window(slot)
        mine = self.share.positions(len(window), self.rope.members, self.rope.rank, slot)
        if isinstance(mine, range):
            positions: range | np.ndarray = range(window.start + mine.start, window.start + mine.stop)
        else:
            positions = mine + window.start
        borrowed = len(positions) == 0
        ids = self.order.ids(slot.epoch, slot.step, range(window.start, window.start + 1) if borrowed else positions)
        self._asked[slot] = (positions, borrowed)
        self._loader.request(slot, ids)


Weigh = Callable[[Batch], float]
"""What a batch weighs, where samples are not what counts: the number of its tokens, for example."""
