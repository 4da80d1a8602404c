"""The samples of the next steps, computed many steps at a time: a call of numpy costs more than the numbers in it."""

from __future__ import annotations

from collections import OrderedDict

from cordee.feed.digest import delivered_each
from cordee.feed.order import Order
from cordee.feed.permute import Ids

_AT_ONCE = 16_384  # ids, 128 KiB: they stay in a core's cache
_KEPT = 3  # chunks: of the step that is committed, of the one that is computed, of the one that is read ahead


class Lookahead:
    """Ids and digests of whole global batches, as `Order.ids` and `delivered` give them."""

    def __init__(self, order: Order) -> None:
        """Compute nothing yet."""
        self._order = order
        self._at_once = max(1, _AT_ONCE // order.batch)
        self._chunks: OrderedDict[tuple[int, int], tuple[Ids, list[int]]] = OrderedDict()

    def ids(self, epoch: int, step: int) -> Ids:
        """The samples of a step's global batch; read only."""
        number, within = divmod(step, self._at_once)
        start = within * self._order.batch
        return self._chunk(epoch, number)[0][start : start + self._order.batch]

    def following(self, epoch: int, step: int, most: int) -> Ids | None:
        """The samples of this step and of those after it, at most so many, one in a row; None if it is a short one."""
        number, within = divmod(step, self._at_once)
        ids, batch = self._chunk(epoch, number)[0], self._order.batch
        count = min(most, len(ids) // batch - within)
        return ids[within * batch : (within + count) * batch].reshape(count, batch) if count > 0 else None

    def digest(self, epoch: int, step: int) -> int:
        """What the shares' digests of a step have to add up to."""
        number, within = divmod(step, self._at_once)
        return self._chunk(epoch, number)[1][within]

    def _chunk(self, epoch: int, number: int) -> tuple[Ids, list[int]]:
        found = self._chunks.get((epoch, number))
        if found is None:
            first = number * self._at_once
            ids = self._order.span(epoch, range(first, min(first + self._at_once, self._order.steps)))
            found = self._chunks[epoch, number] = (ids, delivered_each(ids, self._order.batch))
            if len(self._chunks) > _KEPT:
                self._chunks.popitem(last=False)
        return found
