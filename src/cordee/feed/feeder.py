"""From a position in the training to this worker's samples: order, share and loader put together."""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cordee.feed.batch import Batch
from cordee.feed.coming import Coming, Expected, Expecting, cut_of, micros_of, pieces_of
from cordee.feed.late import change, late_of
from cordee.feed.loader import Loader, Request
from cordee.feed.locality import Near
from cordee.feed.order import Order, delivered_each, delivered_shares
from cordee.feed.permute import Ids
from cordee.feed.share import Share, Shares
from cordee.feed.source import Fields, Source
from cordee.group.team import Team

LONGEST_S = 0.005
"""What gathering small batches of many steps at once may take."""
MOST_BYTES = 2**20
"""Of all of them together."""
MOST, FEWEST = 32, 4
_IDS_AT_ONCE = 16_384  # 128 KiB: they stay in a core's cache
_CHUNKS = 3  # of the step that is committed, of the one that is computed, of the one that is read ahead

Weigh = Callable[[Batch], float]
"""What a batch weighs, where samples are not what counts: the number of its tokens, for example."""


class Slot(NamedTuple):
    """One micro-batch of the training: the unit that is cut into shares."""

    epoch: int
    step: int
    """Within the epoch."""
    micro: int = 0
    part: int = -1
    """Which part of it, as a window's steps are cut; -1: the share of this worker."""


class _Mine(NamedTuple):
    """My part of a micro-batch: positions in the global batch, and the samples there."""

    positions: range | np.ndarray
    ids: Ids
    borrowed: bool = False


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
        whole: bool = False,
        device: str = "cpu",
        training: bool = True,
    ) -> None:
        """Nothing is read before the first `take`; batches are augmented only in training.

        `whole`: each of the micro-batches is computed by one worker, not shared out over all of them.
        """
        self.source = source
        self._late = late_of(source, training=training)
        self.order = order
        self.lookahead = Lookahead(order)
        self.shares = shares
        self.team = team
        self.accumulate, self.whole = accumulate, whole
        self.batch: Batch | None = None
        """The last one that was taken."""
        self.in_parts = False
        """Whether that is a part of a window: other workers compute other parts, of other steps, at any time."""
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
        self.owners: tuple[int, ...] = ()
        """The workers for which the parts of slots are cut."""
        self._cuts: dict[tuple[Share, int, int], range] = {}
        """Where a part, or my share, of a micro-batch of so many samples lies, as long as the members stay."""
        self._strip: dict[Slot, Batch] = {}
        """Small batches of the next steps."""
        self._traits = source.traits
        self._far: Expecting | None = self._traits.far
        self._expected: Expected | None = None
        self._next: Slot | None = None
        """The slot that a far source expects to be gathered next."""
        self._near: Near | None = None
        self._at_once = -1
        """How many of them are gathered at once, if they are small and quick to read; -1: not known yet."""

    def micros(self, step: int) -> int:
        """How many micro-batches a step is computed in; none of them is empty."""
        return micros_of(self.order, self.accumulate, step)

    def own_micros(self, slot: Slot) -> Sequence[int]:
        """Those of this slot's step that this worker takes; the first one, to borrow from, where none is its own."""
        if not self.whole:
            return range(self.micros(slot.step))
        return self._pieces(slot, self.team.share) or range(1)

    def owners_of(self, slot: Slot) -> list[int]:
        """The number of the share that each micro-batch of this slot's step belongs to, where that is `whole`."""
        owners = {piece: share for share in range(self.team.shares) for piece in self._pieces(slot, share)}
        return [owners[piece] for piece in range(self.micros(slot.step))]

    def _pieces(self, slot: Slot, share: int) -> list[int]:
        rule = self.shares.at(self._number(slot))
        return pieces_of(rule, self.micros(slot.step), self.team.lines.mesh.numbers, share, slot[:2])

    def take(self, slot: Slot, *, ahead: bool = True) -> Batch:
        """My share of this slot's samples; an empty share borrows the first sample of the micro-batch."""
        self.in_parts = slot.part >= 0
        strips = self._at_once > 0 and not self.in_parts
        found = self._strip.pop(slot, None) or (self._from_strip(slot) if strips else None)
        if found is not None:
            self.batch, found.seed = found, self.order.seed
            return change(found, self._late) if self._late else found
        if self._requested and slot not in self._requested:
            self.forget()
        if self._loader.ahead:  # also if nothing is ready: the thread may still read what was cancelled
            self._request(slot)
        if slot in self._requested:
            mine, request = self._requested.pop(slot)
            batch = self._loader.take(request)
        else:
            mine = self._mine(slot)
            self._expect(slot)
            batch = self._loader.take_now(mine.ids, slot.epoch)
        batch.seed, batch.epoch, batch.step, batch.positions = self.order.seed, slot.epoch, slot.step, mine.positions
        batch.borrowed = mine.borrowed
        batch.weight = 0.0 if mine.borrowed else float(len(mine.ids))
        self.batch = batch
        if self._at_once < 0 and not batch.borrowed and self._loader.quick is not None:
            small = self._loader.plain and self._loader.quick and self.accumulate == 1 and not self.whole
            self._at_once = steps_at_once(batch.fields) if small else 0
        if ahead and self._loader.ahead and (not self.in_parts or slot.micro + 1 < self.micros(slot.step)):
            self._request(self._after(slot))
        return change(batch, self._late) if self._late else batch

    def cut_for(self, owners: tuple[int, ...]) -> None:
        """Cut slots into parts for these workers from now on."""
        if owners != self.owners:
            self.owners = owners
            self.forget()

    def forget(self) -> None:
        """The members have changed: what was gathered ahead is cut wrongly."""
        for _, request in self._requested.values():
            self._loader.cancel(request)
        self._requested.clear()
        self._cuts.clear()
        self._strip.clear()
        self._near = None
        self._expect_no_more()

    def reshare(self, shares: Shares, first_step: int) -> None:
        """Cut batches by another value of shares, which differs from `first_step` on; what is read before it stays."""
        self.shares = shares
        for slot, (_, request) in list(self._requested.items()):
            if self._number(slot) >= first_step:
                self._loader.cancel(request)
                del self._requested[slot]
        self._strip = {slot: batch for slot, batch in self._strip.items() if self._number(slot) < first_step}
        self._expect_no_more()

    def _number(self, slot: Slot) -> int:
        return slot.epoch * self.order.steps + slot.step

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

    def _after(self, slot: Slot) -> Slot:
        """The slot that follows, over the end of the epoch too; which part of the next step follows is not known."""
        later = [micro for micro in self.own_micros(slot) if micro > slot.micro] if self.accumulate > 1 else []
        if later:
            return slot._replace(micro=later[0])
        begins = Slot(slot.epoch, slot.step + 1) if slot.step + 1 < self.order.steps else Slot(slot.epoch + 1, 0)
        return begins._replace(micro=self.own_micros(begins)[0]) if self.whole else begins

    def _request(self, slot: Slot) -> None:
        if slot not in self._requested:
            mine = self._mine(slot)
            self._expect(slot)
            self._requested[slot] = mine, self._loader.request(mine.ids, slot.epoch)

    def _from_strip(self, slot: Slot) -> Batch | None:
        """My share of this slot, gathered with those of the steps after it; None if it is cut in another way."""
        number = slot.epoch * self.order.steps + slot.step
        cut = self._cuts.get((self.shares.at(number), self.order.batch, -1))
        if cut is None or not len(cut) or self._loader.ahead:
            return None
        whole = self.lookahead.following(slot.epoch, slot.step, self.shares.unchanged(number, self._at_once))
        if whole is None:
            return None
        shares = np.ascontiguousarray(whole[:, cut.start : cut.stop])
        self._expect(slot, len(shares))
        began = time.perf_counter()
        self._strip = {Slot(one.epoch, one.step): one for one in _strip(self.source, shares, cut, slot)}
        if time.perf_counter() - began > LONGEST_S:  # a step in so many would be held up by it
            self._at_once = 0
        return self._strip.pop(slot)

    def _mine(self, slot: Slot) -> _Mine:
        size, micros = self.order.size(slot.step), self.micros(slot.step)
        start, stop = size * slot.micro // micros, size * (slot.micro + 1) // micros  # alike for any number of workers
        whole = self.lookahead.ids(slot.epoch, slot.step)[start:stop]
        if self.whole:
            mine = slot.micro in self._pieces(slot, self.team.share)
            return _Mine(range(start, stop), whole.copy()) if mine else _Mine(range(0), whole[:1].copy(), borrowed=True)
        share = self.shares.at(slot.epoch * self.order.steps + slot.step)
        cut: range | Ids | None = self._cuts.get((share, len(whole), slot.part))
        if cut is None:
            own = self.team.lines.mesh.numbers, self.team.share
            owners, part = own if slot.part < 0 else (self.owners, slot.part)
            cut = cut_of(share, whole, owners, part, slot[:3], self._homes())
            if isinstance(cut, range):
                self._cuts[share, len(whole), slot.part] = cut
        if not len(cut):
            return _Mine(range(0), whole[:1].copy(), borrowed=True)
        if not isinstance(cut, range):
            return _Mine(cut + start, whole[cut])
        # A copy: it is the user's, and the next steps' ids must stay as they are.
        return _Mine(range(start + cut.start, start + cut.stop), whole[cut.start : cut.stop].copy())

    def _homes(self) -> Near | None:
        """Who holds which samples, and where the workers of this generation are; None if that makes no difference."""
        traits, lines = self._traits, self.team.lines
        if self._near is None and traits.holders is not None:
            homes = zip(lines.mesh.numbers, (lines.hosts[one] for one in lines.mesh.leaders), strict=True)
            self._near = Near(traits.holders, tuple(homes), traits.rows)
        return self._near

    def _expect(self, slot: Slot, steps: int = 1) -> None:
        """Tell a far source what is going to be gathered from this slot on, if that is not what it was told."""
        if self._far is None:
            return
        if slot.part >= 0:  # which parts a window brings is not known before
            self._expect_no_more()
            return
        if slot != self._next:
            self._expect_no_more()
            own = self.team.lines.mesh.numbers, self.team.share
            near, rows = self._homes(), self._traits.rows
            coming = Coming(self.order, self.shares, *own, self.accumulate, slot[:3], near, rows, self.whole)
            self._expected = self._far.expect(coming)
        self._next = self._after(slot)
        if steps > 1:
            self._next = self._after(slot._replace(step=slot.step + steps - 1))

    def _expect_no_more(self) -> None:
        if self._expected is not None:
            self._expected.close()
        self._expected = self._next = None


class Lookahead:
    """Ids and digests of whole global batches, computed many steps at a time: a call of numpy costs more than them."""

    def __init__(self, order: Order) -> None:
        """Compute nothing yet."""
        self._order = order
        self._at_once = max(1, _IDS_AT_ONCE // order.batch)
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
            if len(self._chunks) > _CHUNKS:
                self._chunks.popitem(last=False)
        return found


def steps_at_once(fields: Fields) -> int:
    """How many batches like this one are worth gathering at once; 0: one at a time."""
    nbytes = sum(one.nbytes for one in _flat(fields))
    count = min(MOST, MOST_BYTES // nbytes) if nbytes else 0
    return count if count >= FEWEST else 0


def _strip(source: Source, shares: Ids, positions: range, first: Slot) -> Iterator[Batch]:
    """The batches of steps from `first` on; a row of `shares` holds the ids at `positions` of one of them."""
    fields = source.gather(shares.reshape(-1))
    pieces = [torch.split(one, len(positions)) for one in _flat(fields)]
    digests = delivered_shares(shares, positions)
    for place, parts in enumerate(zip(*pieces, strict=True)):
        batch = Batch(shares[place], dict(zip(fields, parts, strict=True)) if isinstance(fields, dict) else parts)
        batch.epoch, batch.step, batch.positions = first.epoch, first.step + place, positions
        batch.digest = digests[place]
        yield batch


def _flat(fields: Fields) -> list[Tensor]:
    """What a batch holds by name or by place; none of what is nested deeper."""
    held = list(fields.values() if isinstance(fields, dict) else fields if isinstance(fields, tuple) else ())
    return held if all(isinstance(one, Tensor) for one in held) else []
