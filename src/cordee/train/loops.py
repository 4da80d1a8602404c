"""The loops over batches that are open in a session, and where each of them stands.

A loop may be inside another one: to evaluate in mid-epoch, or to train on what the outer loop chose. In one step of the
outer loop only one of them may train, because a step that is void is computed again with all that is inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cordee.core.errors import UsageError
from cordee.core.events import WarningEvent
from cordee.core.plan import Plan
from cordee.core.record import Record
from cordee.diagnose.guard import Guard
from cordee.feed.batch import Batch
from cordee.feed.feeder import Feeder, Slot, Weigh
from cordee.feed.order import Order, delivered
from cordee.feed.reading import places_of_others
from cordee.feed.share import Share, Shares
from cordee.feed.source import Source
from cordee.group.team import Team
from cordee.sync.batchnorm import StepState
from cordee.sync.gradients import drop
from cordee.sync.pieces import Pieces
from cordee.sync.seam import Agreed, Sync
from cordee.train.agreement import agree_on
from cordee.train.buffers import Snapshot
from cordee.train.devices import seed_draws
from cordee.train.gathering import gathering
from cordee.train.ledger import Committed, Ledger
from cordee.train.precision import Readings
from cordee.train.weight import GlobalWeight
from cordee.train.windows import Windows, refuse_open

if TYPE_CHECKING:
    from cordee.train.stepper import Stepper

BODIES = 2
"""So many are looked at to see whether they draw."""
Start = tuple[int, int]
"""Epoch, and step within it."""


def first_share(plan: Plan, seed: int) -> Share:
    """How the first steps are cut: what is balanced begins with the proportions that are given, else equal."""
    begins = "proportional" if plan.proportions else "equal"
    return Share(begins if plan.share == "balanced" else plan.share, plan.proportions, seed=seed)


class Loop:
    """One loop over batches: its data, and what its open step has done so far."""

    def __init__(self, stepper: Stepper, source: Source, order: Order, weigh: Weigh | None, data: object) -> None:
        """Over a source, made of `data`, in this order; shared as the workers agreed, else as the plan says."""
        team, plan = stepper.team, stepper.plan
        shares = stepper.loops.shares_inside() or Shares(((0, first_share(plan, order.seed)),))
        self.feeder = Feeder(
            source, order, shares, team, accumulate=plan.parts, whole=plan.exact, device=stepper.device
        )
        self._weigh, self.data = weigh, data
        if (far := source.traits.far) is not None and (advice := far.advice(order)):
            stepper.reporter.tell(WarningEvent(advice))
        begun, trains, reducers = stepper.loops.begun, stepper.updates is not None, stepper.reducers
        self.windows = Windows(team, lambda: reducers.rule, stepper.boundary, loops=begun, trains=trains)
        self._weights = GlobalWeight(team.layers), GlobalWeight(Team().layers, local=True)
        self.weight = self._weights[0]
        self.pieces = Pieces() if plan.exact else None
        self.guard = Guard()
        self.losses = Readings()
        self.batch: Batch | None = None
        self.done = 0
        """Updates of this step that are committed; more than `updates` where a void step is computed again."""
        self.committed = 0
        """Steps that were committed in this body."""
        self.backwards = 0
        """Backward passes of this micro-batch."""
        self.buffers_before: Snapshot | None = None
        """The buffers before a part that is computed again, of a window that was merged."""
        self._bodies = 0
        """Bodies of steps in a row that were looked at and drew nothing from Python's and NumPy's generators."""
        self._parameters = reducers.all_parameters
        self._places: object = None
        self._known_draws: bool | None = None
        self.feeder.hold(self._draws is not False)
        self.begin_step(0)

    @property
    def _draws(self) -> bool | None:
        """Whether samples draw from the generators of Python or NumPy; None: not known yet."""
        if self._known_draws is None:
            self._known_draws = self.feeder.source.traits.draws
        return self._known_draws

    def seed(self, device: str, seed: int, slot: Slot) -> None:
        """Let all that is drawn in the body of this step depend on its place and part alone, and see whether it draws.

        Python's and NumPy's generators are the same for all threads. Where the samples draw from them too, nothing is
        read ahead until some bodies were seen not to draw; if they do, nothing is read ahead at all.
        """
        samples = self._draws
        part = slot.micro if self.pieces is not None else self.feeder.team.share if slot.part < 0 else slot.part
        seed_draws(device, seed, slot.epoch, slot.step, part, others=not (samples and self.feeder.ahead))
        if self._bodies < BODIES:
            self._places = places_of_others() if samples else None

    @property
    def place(self) -> int:
        """Where the loss of a backward pass is kept: that of each piece by itself."""
        return 0 if self.pieces is None else self.pieces.number or 0

    def see(self) -> None:
        """The body of a step, or of a micro-batch, is over."""
        if self.pieces is not None:
            self.pieces.end(self._parameters() if self.backwards else ())
        if self._bodies < BODIES:
            self._bodies += 1
            drew = self._places is not None and self._places != places_of_others()
            self._bodies = 0 if drew else self._bodies
            self.feeder.hold(bool(self._draws) and self._bodies < BODIES)

    def begin_step(self, generation: int) -> None:
        """A step begins, or begins again, in this generation of the team."""
        self.generation = generation
        self.redo = False
        """Whether the open step has to be done again."""
        self.open = False
        """Whether there are gradients that no update has used yet."""
        self.trained_inside = False
        """Whether a loop inside this step has trained."""
        self.updates = 0
        """Updates that the code has come to in this pass through the step."""
        self.count = self.digest = 0
        """Samples that were delivered in this step, and their digest."""
        self.own_weight = 0.0
        """What they weigh."""
        self.losses.clear()

    def take(self, slot: Slot) -> Iterator[tuple[Slot | None, Batch]]:
        """My share, or a part, of each micro-batch of a step, one after the other; its slot where draws begin anew."""
        own = self.feeder.own_micros(slot)
        slots = [Slot(slot.epoch, slot.step, micro, slot.part) for micro in own]
        if self.pieces is not None:
            self.pieces.begin(self.feeder.owners_of(slot), self.losses.totals)
        local = self.windows.local  # a replica's gradient is the mean over its own share
        self.weight, weigh = self._weights[local], self._weigh or (len if local else None)
        if weigh is None:
            self.weight.know(float(self.feeder.order.size(slot.step)))
            taken: Iterator[Batch] = map(self.feeder.take, slots)
        else:
            ready = [self.feeder.take(one, ahead=one is slots[-1]) for one in slots]
            pieces = () if self.pieces is None else own
            self.weight.weigh(ready, weigh, pieces, self.feeder.micros(slot.step) if pieces else 1)
            taken = iter(ready)
        for one, batch in zip(slots, taken, strict=True):
            if self._draws is False:
                self.feeder.hold(False)
            batch.last = one is slots[-1]
            self.batch = batch
            self.backwards = 0
            if not batch.borrowed:  # it counts as delivered
                self.count += len(batch)
                self.own_weight += batch.weight
                self.digest += delivered(batch.ids, batch.positions) if batch.digest is None else batch.digest
            if self.pieces is not None:
                self.pieces.take(None if batch.borrowed else one.micro, batch.weight)
            yield one if self.pieces is not None or one.micro == 0 else None, batch

    def weighed(self, agreed: Agreed, sync: Sync) -> Agreed:
        """What this step has come to, once its weight is known: a batch that weighs nothing changes nothing."""
        if not self.weight.nothing:
            return agreed
        drop(sync.parameters)
        return Agreed(agreed.record._replace(loss=0.0))

    def enter(
        self, ledger: Ledger, records: Sequence[Record], number: int, grad_norm: float | None, rate: float | None
    ) -> list[Committed]:
        """Enter the open step, or those of a window, in the ledger; what became of each, for the record.

        `number` is that of the first of them.
        """
        assert self.batch is not None
        order, entered = self.feeder.order, []
        first = self.batch.epoch * order.steps + self.batch.step - self.windows.ahead
        for place, record in enumerate(records):
            at = divmod(first + place, order.steps)
            expected = (order.size(at[1]), self.feeder.lookahead.digest(*at))
            ledger.enter((*at, order.steps), int(record.samples), record.digest, expected)
            wishes = (record.stop + record.asked > 0, record.asked > 0, record.save > 0)
            loss = record.mean_loss
            entered.append(Committed(number + place, *at, loss, int(record.samples), *wishes, grad_norm, rate))
        return entered


class Loops:
    """The open loops, the innermost last, and the epoch with which the next loop over some data goes on."""

    def __init__(self) -> None:
        """None is open, and no data was trained on."""
        self.open: list[Loop] = []
        self.begun = 0
        """How many loops were begun that were not inside the step of another one that trains."""
        self._left: list[Windows] = []
        """Of loops that were left in the middle of a window."""
        self.shares: Shares | None = None
        """What the workers agreed on for the outermost loop; None: what the plan says."""
        self.changes: Callable[[], None] = lambda: None
        """Called after a step if workers are to leave; a job's loop sees to that by itself."""
        self._next: dict[Hashable, tuple[int, object]] = {}
        """The epoch with which a loop over some data goes on, by its fingerprint and by its place in memory."""

    def shares_inside(self) -> Shares | None:
        """Those of a loop that begins now: inside another one, as its step is cut; else what the workers agreed on."""
        if self.shares is None or not self.open or (batch := self.open[0].batch) is None:
            return self.shares
        return Shares(((0, self.shares.at(_number(self.open[0], batch))),))

    def current(self) -> tuple[Loop, Batch]:
        """The loop whose batch the user's code works on, and the batch; there has to be one."""
        loop = self.open[-1] if self.open else None
        if loop is None or loop.batch is None:
            raise UsageError("backward() and step() belong inside a loop over batches()")
        return loop, loop.batch

    @property
    def inside_open(self) -> bool:
        """Whether it is inside a step that has gradients for its next update."""
        return any(outer.open for outer in self.open[:-1])

    def ends(self, last: Committed | None, team: Team) -> bool:
        """Whether the loop is over after the step that was committed last; if not, workers may leave here."""
        if last is not None and last.stop:
            return True
        if team.awaited and len(self.open) == 1:  # not within the step of another loop
            self.changes()
        return False

    @contextmanager
    def opened(self, loop: Loop, state: StepState, forget: Callable[..., None]) -> Iterator[None]:
        """A loop in here; at its end, what is open inside it counts no more, and the one around it goes on as it was.

        The outermost loop lets `forget` drop the gradients that no step has used.
        """
        self.begun += not self.open
        self.open.append(loop)
        silent, void = state.silent, state.void
        try:
            with gathering(loop.feeder, state):
                yield
        finally:
            if len(self.open) == 1:
                forget(more=loop.open)
            self._left += [loop.windows] if loop.windows.taken else []
            if loop in self.open:
                del self.open[self.open.index(loop) :]
            self.shares = self.shares if self.open else None
            state.silent = silent
            state.void |= void

    def check_merged(self, what: str) -> None:
        """Raise if the replicas are in the middle of a window, where `what` cannot be done."""
        refuse_open([*self._left, *(loop.windows for loop in self.open)], what)

    def resume(self, loop: Loop) -> None:
        """The next batch of this loop is asked for."""
        if not self.open or self.open[-1] is not loop:
            raise UsageError(
                "two loops over batches() take turns: one was asked for its next batch while another one, begun later, "
                "was still open. A loop inside another one has to end first (by its last batch, or by break). To train "
                "on two data sets side by side, as zip would, give them as one: s.batches((x, y, other), ...)"
            )

    def reshare(self, share: Share, first_step: int) -> None:
        """Cut the steps of this loop by another `share` from `first_step` on, counted over all epochs.

        All workers call this in the body of the same step and agree on it; raises `JobError` if they were given others.
        """
        self.check_merged("shares were changed")
        loop, batch = self.current()
        feeder = loop.feeder
        if first_step <= _number(loop, batch):
            raise UsageError(f"first_step={first_step} has begun already: shares can change from the next step on")
        agree_on(feeder.team, {"first step": first_step, "share": [share.rule, *share.proportions, share.seed]})
        self.cut(loop, share, first_step)

    def cut(self, loop: Loop, share: Share, first_step: int) -> None:
        """The same, once all workers have agreed on it or decided it from the same numbers."""
        shares = loop.feeder.shares.changed(first_step, share, _number(*self.current()))
        loop.feeder.reshare(shares, first_step)
        if loop is self.open[0]:
            self.shares = shares

    def train(self) -> None:
        """The innermost loop trains: no other one may do so in the same step."""
        if self.open[-1].trained_inside:
            raise UsageError(
                "a loop over batches() inside this step has trained already, so the step itself cannot: when a worker "
                "is lost, all of it would be done again. Train in one of the two loops"
            )
        if self.inside_open:
            raise UsageError(
                "this loop over batches() is inside the step of another one, which has called s.backward() already: "
                "when a worker is lost, the outer step is computed again with all that is inside it. Evaluate in the "
                "inner loop, or begin it before s.backward() or after s.step() of the outer one"
            )
        for outer in self.open[:-1]:
            outer.trained_inside = True
            outer.guard.trained_inside()

    def first(
        self, fingerprint: str, data: object, start: Start | None, epochs: int | None
    ) -> tuple[Start, int | None]:
        """Where a loop over this data begins, and before which epoch it ends.

        Without a `start` it goes on with the epoch after the last one that was trained on in this session, and `epochs`
        counts from there.
        """
        self.check_merged("another loop over batches() began")
        if start is not None:
            return start, epochs
        first = max(self._next.get(key, (0, None))[0] for key in (fingerprint, id(data)))
        return (first, 0), None if epochs is None else first + epochs

    def forget(self) -> None:
        """The members have changed: what was gathered ahead is cut wrongly."""
        for loop in self.open:
            loop.feeder.forget()

    def trained(self, loop: Loop, epoch: int) -> None:
        """A step of this epoch was committed."""
        for key in (loop.feeder.source.fingerprint, id(loop.data)):
            self._next[key] = epoch + 1, loop.data  # held, so that no other object gets its place in memory


def _number(loop: Loop, batch: Batch) -> int:
    """Of the step of this batch, counted over all epochs."""
    return batch.epoch * loop.feeder.order.steps + batch.step
