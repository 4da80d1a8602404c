"""What a reader is going to ask a source for, known before it does: ids of its shares of all steps to come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from cordee.feed.locality import Near
from cordee.feed.order import Order
from cordee.feed.permute import Ids
from cordee.feed.share import Share, Shares

AT_ONCE = 2**20
"""Ids of one stretch at most, unless a single step has more: 8 MiB."""


class Stretch(NamedTuple):
    """Some gathers that follow one another: all of an epoch if that is not too much."""

    ids: Ids
    """Of all of them, one after the other."""
    ends: Ids
    """Where each gather ends in `ids`."""


@dataclass(frozen=True)
class Coming:
    """The gathers of one reader from a slot on, over all epochs; the reader may stop at any time."""

    order: Order
    shares: Shares
    owners: tuple[int, ...]
    """The numbers of the workers over which a batch is cut, and which of them this reader is."""
    index: int
    accumulate: int = 1
    start: tuple[int, int, int] = (0, 0, 0)
    """Epoch, step and micro-batch of the first gather."""
    near: Near | None = None
    rows: Ids | None = None
    """Which samples of the source the ids of the order stand for; None: the same."""
    whole: bool = False
    """Whether a micro-batch is computed by one owner, not shared out over all."""

    def stretches(self) -> Iterator[Stretch]:
        """All that comes, some steps at a time, without an end."""
        epoch, step, micro = self.start
        each = max(1, AT_ONCE // max(1, self.order.batch // max(1, len(self.owners))))
        while True:
            steps = range(step, min(step + each, self.order.steps))
            stretch = self._stretch(epoch, steps, micro)
            yield stretch if self.rows is None else Stretch(self.rows[stretch.ids], stretch.ends)
            micro = 0
            epoch, step = (epoch, steps.stop) if steps.stop < self.order.steps else (epoch + 1, 0)

    def _stretch(self, epoch: int, steps: range, micro: int) -> Stretch:
        whole = self.order.span(epoch, steps)
        first = epoch * self.order.steps + steps.start
        share, batch = self.shares.at(first), self.order.batch
        alike = self.shares.unchanged(first, len(steps)) == len(steps)
        full = len(whole) // batch
        if alike and self.accumulate == 1 and share.in_runs:
            cut = share.positions(batch, self.owners, self.index)
            if isinstance(cut, range) and len(cut):  # alike in all steps but a short one: the same columns of a table
                table = whole[: full * batch].reshape(full, batch)[:, cut.start : cut.stop]
                parts, ends = [table.reshape(-1)], np.arange(1, full + 1, dtype=np.int64) * len(cut)
                if full < len(steps):
                    last = self._own(whole[full * batch :], (epoch, steps[-1], 0))
                    parts, ends = [*parts, last], np.append(ends, len(parts[0]) + len(last))
                return Stretch(np.concatenate(parts), ends)
        slots = [
            self._own(self._micro(whole[at * batch : (at + 1) * batch], step, place), (epoch, step, place))
            for at, step in enumerate(steps)
            for place in self._micros(epoch, step)
            if step > steps.start or place >= micro
        ]
        return Stretch(np.concatenate(slots), np.cumsum([len(one) for one in slots], dtype=np.int64))

    def _micros(self, epoch: int, step: int) -> Sequence[int]:
        """The micro-batches of a step that this reader is asked for."""
        count = micros_of(self.order, self.accumulate, step)
        return (self._pieces(epoch, step) or range(1)) if self.whole else range(count)

    def _pieces(self, epoch: int, step: int) -> list[int]:
        """Those of them that are this reader's alone."""
        share = self.shares.at(epoch * self.order.steps + step)
        return pieces_of(share, micros_of(self.order, self.accumulate, step), self.owners, self.index, (epoch, step))

    def _micro(self, whole: Ids, step: int, micro: int) -> Ids:
        micros = micros_of(self.order, self.accumulate, step)
        return whole[len(whole) * micro // micros : len(whole) * (micro + 1) // micros]

    def _own(self, whole: Ids, slot: tuple[int, int, int]) -> Ids:
        """My samples of a micro-batch; of an empty share the one that is borrowed."""
        if self.whole:
            return whole if slot[2] in self._pieces(*slot[:2]) else whole[:1]
        share = self.shares.at(slot[0] * self.order.steps + slot[1])
        cut = cut_of(share, whole, self.owners, self.index, slot, self.near)
        if not len(cut):
            return whole[:1]
        return whole[cut.start : cut.stop] if isinstance(cut, range) else whole[cut]


class Expected(Protocol):
    """What one reader was announced to read."""

    def close(self) -> None:
        """It reads no more of it."""
        ...


class Expecting(Protocol):
    """A source that wants to know beforehand what is read; it may be asked for anything else at any time."""

    def expect(self, coming: Coming) -> Expected:
        """One more reader begins. An inner one, such as an evaluation, reads while the one before it waits."""
        ...

    def statistics(self) -> dict[str, Any]:
        """What came from where so far, in this process."""
        ...

    def advice(self, order: Order) -> str:
        """What to tell the user who reads in this order: one that suits the source better; empty if it does."""
        ...


def micros_of(order: Order, accumulate: int, step: int) -> int:
    """How many micro-batches a step is computed in; none of them is empty."""
    return 1 if accumulate == 1 else max(1, min(accumulate, order.size(step)))


def micro_sizes(order: Order, accumulate: int, step: int) -> list[int]:
    """How many samples each micro-batch of a step has; the first has the fewest."""
    size, micros = order.size(step), micros_of(order, accumulate, step)
    return [size * (micro + 1) // micros - size * micro // micros for micro in range(micros)]


def pieces_of(share: Share, count: int, owners: Sequence[int], index: int, key: tuple[int, int]) -> list[int]:
    """Of a step that is computed in so many whole pieces, those of the owner at `index`; `key`: epoch and step."""
    return [int(piece) for piece in share.positions(count, owners, index, (*key, 0))]


def cut_of(
    share: Share, whole: Ids, owners: Sequence[int], index: int, key: tuple[int, ...], near: Near | None
) -> range | Ids:
    """The positions of a micro-batch `whole` that the owner at `index` computes."""
    held = near.of(whole, owners) if near is not None and share.rule == "local" else None
    return share.positions(len(whole), owners, index, key, held)
