"""A loop whose steps come in windows: which part of which step this worker computes next, and when a window is over.

A worker computes its own part of a window's first step, without asking for it. With every part that it has done it asks
the coordinator for the next one, and waits only when none is free. No collective is used within a window, so a worker
that is lost holds up no other. Before the barrier at its end the others regroup, and do again what was lost: also what
it did in the window before, if the merge of that was under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from cordee.core.errors import UsageError
from cordee.core.events import WindowEvent
from cordee.core.plan import Plan
from cordee.core.record import Record
from cordee.core.window import InHand, Item, Rule, Window, lift_of
from cordee.feed.feeder import Feeder, Slot
from cordee.group.channel import Channel
from cordee.group.messages import Done, Message, Take, Ticket, WindowOver
from cordee.group.team import Team

if TYPE_CHECKING:
    from cordee.train.loops import Loop

Boundary = Callable[[int], "int | None"]
"""After a number of steps, the next one at which all workers have to stop together; None: not known of any."""


def steps_at_hand(plan: Plan) -> int:
    """How many steps a worker may have to go back: what it reads ahead, and the windows that are not merged yet."""
    return 4 + 2 * (0 if plan.window is None else plan.window.steps)


class Windows:
    """The windows of one loop over batches, as one worker sees them."""

    def __init__(
        self, team: Team, rule: Callable[[], Rule | None], boundary: Boundary, *, loops: int, trains: bool
    ) -> None:
        """`rule` gives that of the next window; None: there is none. All workers have begun so many `loops` before.

        `trains`: the loop is known to train, not only to look at its data.
        """
        self.team, self.rule, self.trains = team, rule, trains
        self._of_job = trains
        """Whether it is known where all workers have to be equal; in a loop of the user's own that may be anywhere."""
        self._boundary, self._loops = boundary, loops
        self.window: Window | None = None
        """The open one; None: all replicas compute their share of the same step."""
        self.local = False
        """Whether replicas update by what they compute themselves, in windows or alone."""
        self.taken = False
        """Whether the coordinator knows that this worker takes part in it: from there on all parts have to be done."""
        self.former: Window | None = None
        """The window before, if its merge is under way."""
        self._meets = False
        """Whether all workers have to be equal at the end of the open window."""
        self._item: Item = (0, 0)
        self._asked = False
        self._own: dict[int, int] = {}
        """Step → samples of it that this worker has done."""

    @property
    def ahead(self) -> int:
        """How many steps the part in hand is after the first step that is not committed; below 0 if it is `again`."""
        return 0 if self.window is None else self._item[0] - self.window.first

    @property
    def again(self) -> bool:
        """Whether the part in hand is one of the window before: it is on record, but was lost with its worker."""
        return self.ahead < 0

    @property
    def begun(self) -> bool:
        """Whether this worker has done a part of the open window."""
        return bool(self._own)

    def slots(self, loop: Loop, first: tuple[int, int], end: int | None) -> Iterator[Slot]:
        """The parts that this worker computes, from step `first` on up to the epoch `end`.

        Where it is the only replica, or only looks at its data, these are the steps one after the other.
        """
        steps = loop.feeder.order.steps
        at = first[0] * steps + first[1]
        while end is None or at < end * steps:
            self._begin(loop, at)
            while True:
                if self.window is not None:
                    loop.feeder.cut_for(self._cut.members)
                epoch, step = divmod(self._item[0], steps)
                yield Slot(epoch, step, 0, self._item[1] if self.window is not None and self.trains else -1)
                if not loop.redo:
                    self._check_trained(loop)
                    if not self.taken:
                        break
            at = at + 1 if self.window is None or not self._own else self.window.end
            self.window = None

    def _begin(self, loop: Loop, at: int) -> None:
        """A window begins at this step."""
        team = self.team
        if self._own:
            self._own = {}
        self._asked, self._item = False, (at, team.replica)
        self.window, rule = None, self.rule()
        self.local = rule is not None
        if rule is None or (team.replicas == 1 and self.former is None):
            return
        end, self._meets = self._end(at, rule, loop)
        former = None if self.former is None else self.former.number
        self.window = Window((self._loops, team.position), at, end, team.lines.mesh.leaders, rule, former)
        if self.trains:  # the answer is here when the first part is done
            self._ask(Take(self.window))

    def _end(self, at: int, rule: Rule, loop: Loop) -> tuple[int, bool]:
        """Where a window ends that begins at this step, and whether all workers have to be equal there."""
        steps, stop = loop.feeder.order.steps, self._boundary(at)
        end = min(at + rule.steps, (at // steps + 1) * steps, *([] if stop is None else [stop]))
        return end, end == stop

    @property
    def _cut(self) -> Window:
        """The window whose members the part in hand is cut for."""
        assert self.window is not None
        return self.former if self.again and self.former is not None else self.window

    def take(self, loop: Loop) -> bool:
        """Before the update by the part in hand: whether it is this worker's; False: compute the one that is.

        Workers may differ on the members of a window when one was lost just before. Then the first that asked is right.
        """
        if self.taken:
            return True
        assert self.window is not None
        if not self._asked:
            self._ask(Take(self.window))
        answer = self._answer()
        assert isinstance(answer, Ticket), "a window is over before all workers had a part of it"
        assumed = self.window, self._item
        self.window, self._item = answer.window, (answer.step, answer.part)
        self.taken = self.trains = True
        return assumed == (self.window, self._item)

    def done(self, record: Record, barrier: Callable[[bool], bool]) -> WindowOver | None:
        """The part in hand is done: get the next one. If all are done, what they came to, once all agree on it.

        `barrier` is told whether the merge may be left behind.
        """
        self.team.channel.heed()
        assert self.window is not None
        self._own[self._item[0]] = self._own.get(self._item[0], 0) + int(record.samples)
        self._ask(Done(self.window.number, *self._item, record.numbers()))
        while isinstance(answer := self._answer(), WindowOver):
            if barrier(self._may_leave(answer)):
                self.taken = False
                return answer
            self._ask(Take(self.window))  # a worker was lost, and what it had done may be to do again
        self._item = (answer.step, answer.part)
        return None

    def _may_leave(self, over: WindowOver) -> bool:
        """Whether replicas may differ at the end of a window: nothing is measured, saved or handed over there."""
        if not over.window.rule.behind or not self._of_job or self._meets:
            return False
        return not any(summed(over)[-1][2:6])

    def sends(self, loop: Loop) -> bool:
        """Whether a merge is under way that arrives in time: the next window's, if waited for, is over both of them."""
        rule = self.rule()
        if self.window is None or self.former is None or rule is None:
            return False
        return not self._end(self.window.end, rule, loop)[1]

    def in_hand(self, share: float, feeder: Feeder) -> InHand:
        """The part that was just computed, and how much of its global batch it is."""
        assert self.window is not None
        fractions = feeder.shares.at(self._item[0]).fractions(self._cut.members)
        steps = self.window.end - self.window.first
        return InHand(self.window.number, *self._item, share, steps, lift_of(fractions))

    def own(self, over: WindowOver) -> list[int]:
        """For each step of a window, how many samples this worker computed."""
        return [self._own.get(step, 0) for step in range(over.window.first, over.window.end)]

    def _ask(self, message: Message) -> None:
        channel = self.team.channel
        assert isinstance(channel, Channel)
        channel.ticket, self._asked = None, True
        channel.send(message)

    def _answer(self) -> Ticket | WindowOver:
        """Wait for it. If a worker was lost meanwhile, regroup: others may need it, and nothing is computed here."""
        channel, membership, meter = self.team.channel, self.team.membership, self.team.meter
        assert isinstance(channel, Channel)
        while (answer := channel.ticket) is None:
            began = time.perf_counter()
            channel.require(
                lambda: channel.ticket is not None or membership.broken,
                membership.deadline_s,
                "the parts of this window that other workers compute",
            )
            waited = time.perf_counter() - began
            meter.blocked_s, meter.waited_s = meter.blocked_s + waited, meter.waited_s + waited
            if channel.ticket is None:
                self.team.recover(())
                if isinstance(channel.ticket, WindowOver) and self.window is not None:
                    self._ask(Take(self.window))  # it may have come before a loss that this generation knows of
        channel.ticket = None
        return answer

    def _check_trained(self, loop: Loop) -> None:
        if self._asked and not loop.updates:
            raise UsageError(
                "this batch had no s.step(): with sync=local each worker is handed parts of several steps, which all "
                "have to be trained before the workers agree. Call s.step(optimizer) for every batch, or use "
                "sync=allreduce"
            )


def check_update(windows: Windows, updates: int, *, known: bool) -> None:
    """Refuse a second update of a part, and an optimizer that is not `known` before a window's end."""
    if updates:
        raise UsageError(
            "this batch had a second s.step(): with sync=local a batch is done with its first update. Use one "
            "optimizer for all parameters, or sync=allreduce"
        )
    if windows.begun and not known:
        raise UsageError(
            "an optimizer, or parameters of one, came in the middle of a window, where workers cannot agree on it. "
            "Make them where s.step() returned True, as it does at the end of each window"
        )


def summed(over: WindowOver) -> list[Record]:
    """The records of a window's steps; what was wished in any of them takes effect with the last."""
    records = [Record.summed(numbers) for numbers in over.records]
    stop, asked, save, admit = (sum(wishes) for wishes in zip(*(one[2:6] for one in records), strict=True))
    calm = [one._replace(stop=0.0, asked=0.0, save=0.0, admit=0.0) for one in records[:-1]]
    return [*calm, records[-1]._replace(stop=stop, asked=asked, save=save, admit=admit)]


def event_of(over: WindowOver, before: int, *, behind: bool) -> WindowEvent:
    """What the run's record says of a window with so many steps `before` it, whose merge was left `behind` or not."""
    window = over.window
    items = [(worker, before + step - window.first + 1, part) for worker, step, part in over.items]
    return WindowEvent(before + 1, before + window.end - window.first, list(window.members), items, behind)


def refuse_open(windows: Sequence[Windows], what: str) -> None:
    """Raise if all parts of a window are not done yet."""
    if any(one.taken for one in windows):
        raise UsageError(
            f"{what} in the middle of a window: between two merges workers compute parts of different steps, and agree "
            "on nothing. Do so where s.step() returned True, as it does at the end of each window"
        )
