"""The session: my place in a run, and the few calls that make a training loop a distributed one.

When a peer dies, nothing is raised here: the step in which it happened is void, `step` returns False, and the
iterator yields the same step again, newly shared among the survivors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core import heap
from cordee.core.errors import UsageError
from cordee.core.plan import Plan
from cordee.core.record import Record
from cordee.diagnose.diverged import diverged
from cordee.diagnose.statistical import by_micro_batch, warn_statistical
from cordee.feed.data import as_source
from cordee.feed.loader import Batch
from cordee.feed.order import Order
from cordee.group.team import Team
from cordee.sync.batchnorm import StepState
from cordee.sync.gradients import drop
from cordee.sync.meeting_points import meeting_points
from cordee.sync.seam import Agreed, Sync, Treatment
from cordee.train.agreement import of_loop
from cordee.train.buffers import BufferKeeper
from cordee.train.checks import check_loss
from cordee.train.feeder import Slot, Weigh
from cordee.train.ledger import Committed, Ledger
from cordee.train.living import Living
from cordee.train.loops import Held, Loop, Loops, Start
from cordee.train.norms import Norms, learning_rate
from cordee.train.precision import Precision
from cordee.train.prepare import prepared
from cordee.train.reducers import Reducers
from cordee.train.reporter import Reporter
from cordee.train.trail import Trail


class Session:
    """One worker's side of a run; alone, it is an ordinary training loop."""

    def __init__(
        self,
        team: Team | None = None,
        *,
        plan: Plan | None = None,
        seed: int = 0,
        device: str = "cpu",
        launched: bool = False,
    ) -> None:
        """Made by `session()`; `team` is None for one process alone. `launched`: our worker leaves the team itself."""
        self.team = team or Team()
        self.plan = plan or Plan()
        self.seed = seed
        self.device = device
        self._launched = launched
        self.ledger = Ledger()
        self.reporter = Reporter(self.team)
        self.last: Committed | None = None
        self.wish_stop = self.wish_save = False
        """Set it to end the run on all workers after the current step."""
        self._state = StepState()
        self.models: list[nn.Module] = []
        """What `prepare` was given, in that order."""
        self.updates: int | None = None
        """How many updates a step has, where that is known before: a job's has one. None: as many as the loop makes."""
        self._buffers = BufferKeeper()
        self._trail = Trail(self._buffers)
        self._warn = partial(warn_statistical, self.team, self.plan)
        self._living = Living(self.team.layers, self._buffers, self._state, self.models, self._warn)
        self._reducers = Reducers(self.team, self.plan, self.models, lambda samples: self.ledger.lose(samples))
        self._norms = Norms(self.models)
        self.precision = Precision(self.plan.precision, device)
        self.skipped = 0
        """Steps that changed nothing, because their gradient did not fit into fp16 at the scale of the loss."""
        self._loops = Loops()
        self._number = 0
        self._seen = 0  # own samples since running statistics were last agreed on
        self.team.on_regroup.append(self._regrouped)
        self.reporter.introduce(device, torch.get_num_threads())

    # ------------------------------------------------------------- who

    @property
    def rank(self) -> int:
        """My place among the workers that are there now; 0 is the one that speaks for all."""
        return self.team.membership.rank

    @property
    def size(self) -> int:
        """How many workers there are now."""
        return self.team.membership.size

    @property
    def number(self) -> int:
        """Steps committed so far, over all epochs."""
        return self._number

    @property
    def number_done(self) -> int:
        """Steps committed so far, the one in whose loop body we are included; others do not count."""
        return self.last.number + 1 if self.last is not None else self._number

    @property
    def last_loss(self) -> float | None:
        """The loss of the last committed step."""
        return self.last.loss if self.last is not None else None

    @property
    def stop_reason(self) -> str | None:
        """Why the launcher asks us to stop; None if it does not."""
        return self.team.channel.stop_reason

    def __enter__(self) -> Session:
        """Leave the team at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Come to the end together with the others, unless an exception ended the block."""
        if kind is not None:
            return
        self.settle()
        self._reducers.close()
        if self._launched:
            self.reporter.send()
            while not self.team.agree([torch.zeros(1)]):
                pass
            self.team.on_regroup.remove(self._regrouped)
            return
        while not self.leave():
            pass
        self.team.close()

    def leave(self) -> bool:
        """Leave together: True when no worker needs anything any more; False if one was lost before that."""
        self.reporter.send()
        return self.team.finish()

    def tell(self, kind: str, content: dict[str, Any]) -> None:
        """Something for the record of the run, said by one worker for all."""
        if self.rank == 0:
            self.reporter.write()  # what happened before it
            self.team.channel.post(kind, content)

    # ------------------------------------------------------------- the loop

    def prepare(self, model: nn.Module, *, compile: bool = True) -> nn.Module:
        """Make `model` ready: on the device, the same on every worker, BatchNorm over the global batch.

        With `compile=True` in the plan it is compiled too, unless you compile what you compute by yourself.
        """
        model = prepared(model, self.team, self.plan, self._state, self.device)
        if (why := by_micro_batch(model, self.plan)) and self.rank == 0:
            self._warn(why)
        self.models.append(model)
        self._buffers.watch(model)
        if self.plan.compile and compile:
            model.compile()
        return model

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in the plan's number format: put the forward pass and the loss into it."""
        return self.precision.autocast()

    def batches(
        self,
        data: Any,
        *,
        batch: int,
        epochs: int | None = 1,
        order: Order | None = None,
        weigh: Weigh | None = None,
        start: Start | None = None,
    ) -> Iterator[Batch]:
        """My share of each global batch, epoch after epoch (`epochs=None`: without end).

        A second loop over the same data goes on with the next epoch. With `start=(epoch, step)` a loop begins there,
        and `epochs` counts from epoch 0 on. The tensors of a batch are reused: clone what you keep. With `accumulate`
        in the plan every micro-batch comes by itself. `weigh` says what a batch weighs if not its samples (tokens, for
        instance); the loss is the mean over that. Ends on all workers after the same step when one wished to stop, or
        Ctrl-C asked for it.
        """
        source = as_source(data)
        order = order or Order(len(source), batch, seed=self.seed)
        keys = (source.fingerprint, Held(data))
        (epoch, step), end = self._loops.first(keys, start, epochs)
        self._reducers.loop = of_loop(source, order, epochs, (epoch, step))
        loop = Loop.over(source, order, weigh, self.team, self.plan, self.device, keys, self._state)
        before = epoch * order.steps + step  # of the run that a script goes on with
        self._number = before if start is not None and before else self.team.steps
        kept = self._enter(loop)
        try:
            while end is None or epoch < end:
                while step < order.steps:
                    yield from self._one_step(loop, Slot(epoch, step))
                    if loop.redo:
                        continue
                    step += 1
                    committed, loop.done = loop.done > 0, 0
                    self._number += committed  # a loop that evaluates commits nothing
                    if committed and self.last is not None and self.last.stop:
                        return
                epoch, step = epoch + 1, 0
        finally:
            loop.feeder.close()
            self._leave(loop, kept)

    def backward(self, loss: Tensor) -> None:
        """Gradients of my share, weighted so that their sum over all workers is that of the global batch."""
        loop, batch = self._current()
        self._loops.train()
        loop.guard.backward(self._reducers.all_parameters() if loop.guard.looks else (), self.models)
        weight = None if self._state.void else loop.weight.total()
        self._state.void |= weight is None
        met = meeting_points(loss) if weight and not batch.weight and not batch.borrowed else []
        loop.backwards += 1
        loop.open = True
        early = self._reducers.only() if batch.last and not self._state.void else None
        if loop.backwards > 1 and batch.last:
            self._state.void |= not self._reducers.hold_back()
            early = None
        factor = batch.weight / weight if weight else 0.0
        if batch.weight:
            loop.losses.add(loss, batch.weight)
        self._reducers.backward(loss, factor * self.precision.scale, met, early, partial(self._record, loop))
        if loop.guard.looks:
            loop.guard.seal(self._reducers.all_parameters(), sent=not self.team.alone)

    def step(self, optimizer: Optimizer, *, clip: float | None = None) -> bool:
        """Agree on the gradient, update, commit. False: not yet (accumulating), or void because a peer was lost.

        `clip` bounds the norm of the global gradient.
        """
        loop, batch = self._current()
        if loop.redo:  # an update before was void, and with it the rest of this step
            self._reducers.forget(more=True)
        if loop.redo or not batch.last:
            return False
        self.precision.check_entered()
        loop.guard.step(optimizer)
        sync = self.sync_of(optimizer)
        loop.updates += 1
        if loop.updates <= loop.done:  # made before the peer was lost; only what came after it is agreed on anew
            drop(sync.parameters)
            self._trail.again()
            loop.guard.committed(sync.parameters)
            return True
        if loop.generation != self.team.membership.generation or self._reducers.differed(loop.done):
            self._void(loop)
            return False
        self._living.agree(loop.count, exact=self.plan.accumulate == 1)
        self.reporter.arrives()
        treatment = Treatment(self.precision.scale, clip)
        agreed = sync.commit(partial(self._record, loop), void=self._state.void, treatment=treatment)
        if agreed is None or not self._living.commit(agreed.record.news):
            self._void(loop)
            return False
        self._update(loop, optimizer, sync, loop.weighed(agreed, sync))
        return True

    def settle(self) -> None:
        """Wait for what is still to be known of the last step: `DivergedError` if its gradient was not finite."""
        if (late := self._norms.late()) is not None:
            self.reporter.came(late)

    def check(self, objective: Callable[[Batch], Any], batch: Batch, *, weigh: Weigh | None = None) -> None:
        """Raise `MixingError` unless `objective(batch)`, a loss, is a mean that shares of the batch add up to."""
        for message in check_loss(objective, batch, self.models, weigh):
            self.tell("warning", {"message": message})

    def agree(self, tensors: Sequence[Tensor]) -> bool:
        """Add these up over all workers, in place. False: a worker was lost; fill them again, with your new share."""
        return self.team.agree(tensors)

    def agree_buffers(self) -> None:
        """Make parameters and running statistics equal on all replicas, before they are measured or saved.

        They differ with `sync=local` and `batchnorm=replica` only: then all get their mean, by samples.
        """
        self.settle()
        self._reducers.merge()
        if self.plan.statistics == "replica":
            self._buffers.agree(self.team, self._seen)
            self._seen = 0

    def sync_of(self, optimizer: Optimizer) -> Sync:
        """What agrees on this optimizer's parameters."""
        sync, sound = self._reducers.of(optimizer)
        self._state.void |= not sound
        self._trail.least = self._reducers.least if self.updates is None else 1
        return sync

    # ------------------------------------------------------------- inside a step

    def _enter(self, loop: Loop) -> tuple[bool, bool]:
        """A loop begins; what is given back is for `_leave`."""
        self._loops.enter(loop)
        loop.guard.begin_loop(self.models)
        if not self._loops.nested:
            self._trail.most = self.updates
            self.reporter.start()
        return self._state.silent, self._state.void

    def _leave(self, loop: Loop, kept: tuple[bool, bool]) -> None:
        """A loop ends; the one around it goes on as it was."""
        if not self._loops.nested:
            self._reducers.forget(more=loop.open)  # what no step has used
        self._loops.leave(loop)
        self._state.silent, void = kept
        self._state.void |= void

    def _one_step(self, loop: Loop, slot: Slot) -> Iterator[Batch]:
        """Yield the micro-batches of one step; afterwards `redo` says whether it has to be done again."""
        self._begin_step(loop)
        for first, batch in loop.take(slot):
            self._state.silent = batch.borrowed
            if first:
                loop.seed(self.device, self.seed, slot.epoch, slot.step, self.team.replica)
            self.reporter.got()
            yield batch
            self._loops.resume(loop)
            loop.see()
            if loop.redo:
                return
            self.reporter.asks()
        loop.guard.end_step(self.models, updates=loop.updates)
        loop.batch = None

    def _begin_step(self, loop: Loop) -> None:
        loop.begin_step(self.team.membership.generation)
        self.reporter.asks()
        self._state.void = False
        if self._loops.inside_open:  # it may only look: what the step around it comes back to stays
            return
        if not loop.done:  # not when a step is done again after its first update
            self.precision.begin_step()
            self._trail.begin()
        if not self.team.alone:  # alone, no step is ever void
            self._living.begin()
            self._buffers.remember()
        self.team.channel.at = f"step {self._number}"

    def _record(self, loop: Loop) -> Record:
        wishes = self.wish_stop, self.stop_reason is not None, self.wish_save
        return Record(loop.losses.total(), loop.own_weight, *wishes, self._living.news(), loop.count, loop.digest)

    def _update(self, loop: Loop, optimizer: Optimizer, sync: Sync, agreed: Agreed) -> None:
        """The step is committed: update, and enter it in the books."""
        _, batch = self._current()
        record, fits, norm = agreed
        if not math.isfinite(record.loss):
            raise diverged(record.mean_loss, self._number, batch, loop.feeder)
        self.settle()
        self.precision.saw(fits)
        grad_norm = self._norms.see(norm, sync.parameters, (self._number, batch.epoch)) if fits else None
        rate = learning_rate(optimizer)
        self._trail.before(sync.parameters, alone=self.team.alone)
        if fits:
            sync.update(optimizer)
        self.skipped += not fits
        drop(sync.parameters)
        self._trail.after()
        loop.guard.committed(sync.parameters)
        loop.done += 1
        loop.open = False
        self._seen += loop.count
        if loop.done == 1:
            self.last = loop.enter(self.ledger, record, self._number, grad_norm, rate)
            self._loops.trained(loop, batch.epoch)
            self.team.steps = self._number + 1
            heap.warm(self._number + 1)
            self.reporter.commit(self.last, loop.count, waits=fits and grad_norm is None)

    def _void(self, loop: Loop) -> None:
        """This step is done again: forget its gradients, and what it did to parameters and buffers."""
        loop.redo = self._state.void = True
        loop.feeder.forget()
        self._reducers.forget(more=True)  # an optimizer that has not stepped yet has no reducer
        self._trail.back()
        self._buffers.settle()

    def _regrouped(self) -> None:
        self._state.void = True  # what is left of this step was cut for other members
        self.reporter.repeat()
        for loop in self._loops:
            loop.feeder.forget()

    def _current(self) -> tuple[Loop, Batch]:
        loop = self._loops.now
        if loop is None or loop.batch is None:
            raise UsageError("backward() and step() belong inside a loop over batches()")
        return loop, loop.batch
