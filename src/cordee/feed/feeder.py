"""From a position in the training to this worker's samples: order, share and loader put together."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cordee.feed.batch import Batch
from cordee.feed.loader import Loader, Request
from cordee.feed.lookahead import Lookahead
from cordee.feed.order import Order
from cordee.feed.permute import Ids
from cordee.feed.share import Share, Shares
from cordee.feed.source import Source
from cordee.feed.strip import steps_at_once, strip
from cordee.group.team import Team

LONGEST_S = 0.005
"""What gathering small batches of many steps at once may take."""


class Slot(NamedTuple):
    """One micro-batch of the training: the unit that is cut into shares."""

    epoch: int
    step: int
    """Within the epoch."""
    micro: int = 0


class Feeder:
    """This worker's share of every micro-batch, gathered ahead of time where that pays."""

    def __init__(
        self,
        source: Source,
        order: Order,
        shares: Shares,
        team: Team,
        *,
        accumulate: int = 1,
        device: str = "cpu",
    ) -> None:
        """Nothing is read before the first `take`."""
        self.source = source
        self.order = order
        self.lookahead = Lookahead(order)
        self.shares = shares
        self.team = team
        self.accumulate = accumulate
        self.batch: Batch | None = None
        """The last one that was taken."""
        self._loader = Loader(
            source,
            device=device,
            depth=accumulate + 1,
            deadline_s=team.membership.deadline_s,
            seed=order.seed,
            who=f"worker {team.membership.worker} on {socket.gethostname()}",
            late=lambda awaited: team.channel.stuck(awaited, team.membership.deadline_s),
        )
        self._requested: dict[Slot, tuple[_Mine, Request]] = {}
        self._cuts: dict[tuple[Share, int], range] = {}
        """Where my share of a micro-batch of so many samples lies, as long as the members stay."""
        self._strip: dict[Slot, Batch] = {}
        """Small batches of the next steps."""
        self._at_once = -1
        """How many of them are gathered at once, if they are small and quick to read; -1: not known yet."""

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
        found = self._strip.pop(slot, None) or (self._from_strip(slot) if self._at_once > 0 else None)
        if found is not None:
            self.batch = found
            return found
        if self._loader.ahead:  # also if nothing is ready: the thread may still read what was cancelled
            self._request(slot)
        if slot in self._requested:
            mine, request = self._requested.pop(slot)
            batch = self._loader.take(request)
        else:
            mine = self._mine(slot)
            batch = self._loader.take_now(mine.ids, slot.epoch)
        batch.epoch, batch.step, batch.positions = slot.epoch, slot.step, mine.positions
        batch.borrowed = mine.borrowed
        batch.weight = 0.0 if mine.borrowed else float(len(mine.ids))
        self.batch = batch
        if self._at_once < 0 and not batch.borrowed and self._loader.quick is not None:
            small = self._loader.plain and self._loader.quick and self.accumulate == 1
            self._at_once = steps_at_once(batch.fields) if small else 0
        if ahead and self._loader.ahead:
            self._request(self.after(slot))
        return batch

    def forget(self) -> None:
        """The members have changed: what was gathered ahead is cut wrongly."""
        for _, request in self._requested.values():
            self._loader.cancel(request)
        self._requested.clear()
        self._cuts.clear()
        self._strip.clear()

    def reshare(self, shares: Shares) -> None:
        """Cut batches by another value of shares, from those on that were not taken yet."""
        self.shares = shares
        self.forget()

    def hold(self, hold: bool) -> None:
        """Gather nothing ahead, or do so again where that pays."""
        self._loader.hold = hold

    @property
    def ahead(self) -> bool:
        """Whether samples are gathered ahead, by a thread."""
        return self._loader.ahead

    def close(self) -> None:
        """Stop reading ahead."""
        self.forget()
        self._loader.close()

    def _request(self, slot: Slot) -> None:
        if slot not in self._requested:
            mine = self._mine(slot)
            self._requested[slot] = mine, self._loader.request(mine.ids, slot.epoch)

    def _from_strip(self, slot: Slot) -> Batch | None:
        """My share of this slot, gathered with those of the steps after it; None if it is cut in another way."""
        number = slot.epoch * self.order.steps + slot.step
        cut = self._cuts.get((self.shares.at(number), self.order.batch))
        if cut is None or not len(cut) or self._loader.ahead:
            return None
        whole = self.lookahead.following(slot.epoch, slot.step, self.shares.unchanged(number, self._at_once))
        if whole is None:
            return None
        shares = np.ascontiguousarray(whole[:, cut.start : cut.stop])
        began = time.perf_counter()
        self._strip = {Slot(one.epoch, one.step): one for one in strip(self.source, shares, cut, slot.epoch, slot.step)}
        if time.perf_counter() - began > LONGEST_S:  # a step in so many would be held up by it
            self._at_once = 0
        return self._strip.pop(slot)

    def _mine(self, slot: Slot) -> _Mine:
        window = self.window(slot)
        whole = self.lookahead.ids(slot.epoch, slot.step)
        share = self.shares.at(slot.epoch * self.order.steps + slot.step)
        cut = self._cuts.get((share, len(window)))
        if cut is None:
            drawn = share.positions(len(window), self.team.mesh.leaders, self.team.replica, slot)
            if not isinstance(drawn, range):
                return (
                    _Mine(drawn + window.start, whole[drawn + window.start]) if len(drawn) else _borrow(whole, window)
                )
            cut = self._cuts[share, len(window)] = drawn
        positions = range(window.start + cut.start, window.start + cut.stop)
        # A copy: it is the user's, and the next steps' ids must stay as they are.
        return _Mine(positions, whole[positions.start : positions.stop].copy()) if positions else _borrow(whole, window)


class _Mine(NamedTuple):
    """My part of a micro-batch: positions in the global batch, and the samples there."""

    positions: range | np.ndarray
    ids: Ids
    borrowed: bool = False


def _borrow(whole: Ids, window: range) -> _Mine:
    return _Mine(range(0), whole[window.start : window.start + 1].copy(), borrowed=True)


Weigh = Callable[[Batch], float]
"""What a batch weighs, where samples are not what counts: the number of its tokens, for example."""
