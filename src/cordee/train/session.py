"""The session: my place in a run, and the few calls that make a training loop a distributed one.

When a peer dies, nothing is raised here: the step in which it happened is void, `step` returns False, and the
iterator yields the same step again, newly shared among the survivors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.errors import UsageError
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.feed.data import as_source
from cordee.feed.digest import delivered
from cordee.feed.loader import Batch
from cordee.feed.order import Order
from cordee.feed.share import Share
from cordee.group.join import join
from cordee.group.rope import Rope
from cordee.sync.allreduce import Reducer
from cordee.sync.batchnorm import StepState, bind, meeting_points
from cordee.train.agreement import agree_on, of_loop, of_model
from cordee.train.buffers import BufferKeeper
from cordee.train.devices import lay_out, seed_draws
from cordee.train.diverged import diverged
from cordee.train.feeder import Feeder, Slot, Weigh
from cordee.train.guard import Guard
from cordee.train.precision import Precision, Readings
from cordee.train.preflight.batch import check_batch
from cordee.train.record import Committed, Ledger, Reporter, from_limbs, to_limbs
from cordee.train.reducers import Reducers, backward_for_nothing, backward_of_share
from cordee.train.weight import GlobalWeight


class Session:
    """One worker's side of a run; alone, it is an ordinary training loop."""

    def __init__(
        self,
        rope: Rope | None = None,
        *,
        plan: Plan | None = None,
        seed: int = 0,
        device: str = "cpu",
        launched: bool = False,
    ) -> None:
        """Made by `session()`; `rope` is None for one process alone. `launched`: our worker leaves the rope itself."""
        self.rope = rope or Rope()
        self.plan = plan or Plan()
        self.seed = seed
        self.device = device
        self._launched = launched
        self.ledger = Ledger()
        self.reporter = Reporter(self.rope)
        self.last: Committed | None = None
        self.wish_stop = False
        """Set it to end the run on all workers after the current step."""
        self.wish_save = False
        self._state = StepState()
        self._guard = Guard()
        self.models: list[nn.Module] = []
        """What `prepare` was given, in that order."""
        self._buffers = BufferKeeper()
        self._reducers = Reducers(self.rope, self.plan)
        self.precision = Precision(self.plan.precision, device)
        self.skipped = 0
        """Steps that changed nothing, because their gradient did not fit into fp16 at the scale of the loss."""
        self._feeder: Feeder | None = None
        self._number = 0
        self._redo = False
        self._substeps = self._substeps_done = 0
        self._generation = 0
        self._batch: Batch | None = None
        self._weight = GlobalWeight(self.rope)
        self._seen = 0  # own samples since running statistics were last agreed on
        self._losses = Readings()
        self._count = self._digest = self._backwards = 0
        self.rope.on_regroup.append(self._regrouped)
        self.reporter.introduce(device, torch.get_num_threads())

    # ------------------------------------------------------------- who

    @property
    def rank(self) -> int:
        """My place among the workers that are there now; 0 is the one that speaks for all."""
        return self.rope.rank

    @property
    def size(self) -> int:
        """How many workers there are now."""
        return self.rope.size

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
        return self.rope.channel.stop_reason if self.rope.channel is not None else None

    def __enter__(self) -> Session:
        """Leave the rope at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Come to the end together with the others, unless an exception ended the block."""
        if kind is not None:
            return
        self._reducers.close()
        if self._launched:
            self.reporter.send()
            while not self.rope.agree([torch.zeros(1)]):
                pass
            self.rope.on_regroup.remove(self._regrouped)
            return
        while not self.leave():
            pass
        self.rope.close()

    def leave(self) -> bool:
        """Leave together: True when nobody needs anything any more; False if somebody was lost before that."""
        self.reporter.send()
        return self.rope.finish()

    def tell(self, kind: str, content: dict[str, Any]) -> None:
        """Something for the record of the run, said by one worker for all."""
        if self.rank == 0 and self.rope.channel is not None:
            self.rope.channel.post(kind, content)

    # ------------------------------------------------------------- the loop

    def prepare(self, model: nn.Module, *, compile: bool = True) -> nn.Module:
        """Make `model` ready: on the device, the same on every worker, BatchNorm over the global batch.

        With `compile=True` in the plan it is compiled too, unless you compile what you compute by yourself.
        """
        agree_on(self.rope, of_model(model, self.plan))
        model = lay_out(model.to(self.device), self.plan.layout)
        bind(model, self.plan.batchnorm, self.rope, self._state, compiled=self.plan.compile)
        state = model.state_dict(keep_vars=True).values()
        self.rope.share_from_first([tensor for tensor in state if isinstance(tensor, Tensor)])
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
        start: tuple[int, int] = (0, 0),
    ) -> Iterator[Batch]:
        """My share of each global batch, epoch after epoch (`epochs=None`: without end), from (epoch, step) on.

        The tensors of a batch are reused: clone what you keep. With `accumulate` in the plan every micro-batch comes
        by itself. `weigh` says what a batch weighs if not its samples (tokens, for instance); the loss is the mean over
        that. Ends on all workers after the same step when one wished to stop, or Ctrl-C asked for it.
        """
        source = as_source(data)
        order = order or Order(len(source), batch, seed=self.seed)
        self._reducers.loop = of_loop(source, order, epochs, start)
        share = Share(self.plan.share, self.plan.proportions, seed=order.seed)
        self._feeder = Feeder(source, order, share, self.rope, accumulate=self.plan.accumulate, device=self.device)
        (epoch, step), self._substeps_done = start, 0  # a former loop may have been left right after an update
        before = self.rope.steps if start == (0, 0) else 0  # those of former loops of the same script
        self._number = before + epoch * order.steps + step
        self._guard.begin_loop(self.models)
        self.reporter.start()
        try:
            while epochs is None or epoch < epochs:
                while step < order.steps:
                    yield from self._one_step(self._feeder, Slot(epoch, step), weigh)
                    if self._redo:
                        continue
                    step += 1
                    committed, self._substeps_done = self._substeps_done > 0, 0
                    self._number += committed  # a loop that evaluates commits nothing
                    if committed and self.last is not None and self.last.stop:
                        return
                epoch, step = epoch + 1, 0
        finally:
            self._feeder.close()
            self._feeder = None
            self._reducers.forget()  # what no step has used

    def backward(self, loss: Tensor) -> None:
        """Gradients of my share, weighted so that their sum over all workers is that of the global batch."""
        batch = self._current()
        weight = None if self._state.void else self._weight.total()
        self._state.void |= weight is None
        met = meeting_points(loss) if weight and not batch.weight and not batch.borrowed else []
        silent = batch.weight == 0 and not met
        self._backwards += 1
        self._guard.backward()
        early = self._reducers.only() if batch.last and not self._state.void else None
        if self._backwards > 1 and batch.last:
            self._state.void |= not self._reducers.hold_back()
            early = None
        if silent:
            backward_for_nothing(loss, self._reducers.parameters(self.models))
        factor = batch.weight / weight if weight else 0.0
        if batch.weight:
            self._losses.add(loss, factor)
        if early is not None:  # an empty share too, though its gradients were there before: it sends when others do
            early.ride_along(self._extras)
            early.arm()
        if not silent:
            backward_of_share(loss, factor * self.precision.scale, met)
        if early is not None:
            early.filled()

    def step(self, optimizer: Optimizer, *, clip: float | None = None) -> bool:
        """Agree on the gradient, update, commit. False: not yet (accumulating), or void because a peer was lost.

        `clip` bounds the norm of the global gradient.
        """
        batch = self._current()
        if not batch.last:
            return False
        if not self.precision.entered:
            raise UsageError(
                f"the plan says precision={self.plan.precision}, but this loop computes in fp32: put the forward pass "
                "and the loss under `with s.autocast():`"
            )
        self._guard.step()
        reducer = self.reducer_of(optimizer)
        self._substeps += 1
        if self._substeps <= self._substeps_done:  # done before the peer was lost; only what came after it is repeated
            reducer.clear()
            self._buffers.bring_back()
            return True
        if self._generation != self.rope.generation:
            self._void()
            return False
        reducer.ride_along(self._extras)
        self.reporter.arrives()
        extras = reducer.finish(void=self._state.void)
        if extras is None:
            self._void()
            return False
        self._commit(optimizer, reducer, extras, clip)
        return True

    def check(self, objective: Callable[[Batch], Any], batch: Batch, *, weigh: Weigh | None = None) -> None:
        """Raise `MixingError` unless `objective(batch)`, a loss, is a mean that shares of the batch add up to."""
        for message in check_batch(objective, batch, self.models, weigh):
            self.tell("warning", {"message": message})

    def agree_buffers(self) -> None:
        """With `batchnorm=replica`: give all replicas the mean of their running statistics, by samples."""
        if self.plan.batchnorm == "replica":
            self._buffers.agree(self.rope, self._seen)
            self._seen = 0

    def reducer_of(self, optimizer: Optimizer) -> Reducer:
        """What sums the gradients of this optimizer's parameters."""
        reducer, sound = self._reducers.of(optimizer)
        self._state.void |= not sound
        return reducer

    # ------------------------------------------------------------- inside a step

    def _one_step(self, feeder: Feeder, slot: Slot, weigh: Weigh | None) -> Iterator[Batch]:
        """Yield the micro-batches of one step; afterwards `_redo` says whether it has to be done again."""
        self._begin_step()
        slots = [Slot(slot.epoch, slot.step, micro) for micro in range(feeder.micros(slot.step))]
        if weigh is None:
            self._weight.know(float(feeder.order.size(slot.step)))
            taken: Iterator[Batch] = map(feeder.take, slots)
        else:
            ready = [feeder.take(one, ahead=one is slots[-1]) for one in slots]
            for batch in ready:
                batch.weight = 0.0 if batch.borrowed else float(weigh(batch))
            self._weight.announce(sum(batch.weight for batch in ready))
            taken = iter(ready)
        for one, batch in zip(slots, taken, strict=True):
            self._give(batch, last=one is slots[-1])
            if one.micro == 0:
                seed_draws(self.device, self.seed, slot.epoch, slot.step, self.rope.rank)
            self.reporter.got()
            yield batch
            if self._redo:
                return
            self.reporter.asks()
        self._guard.end_step(self.models, updates=self._substeps)
        self._batch = None

    def _give(self, batch: Batch, *, last: bool) -> None:
        """This is the batch that the user's code works on now, and that counts as delivered."""
        batch.last = last
        self._batch = batch
        self._backwards = 0
        self._state.silent = batch.borrowed
        if not batch.borrowed:
            self._count += len(batch)
            self._digest += delivered(batch.ids, batch.positions)

    def _begin_step(self) -> None:
        self._redo = False
        self._substeps = 0
        self._guard.begin_step()
        if not self._substeps_done:  # not when the rest of a step is done again
            self.precision.begin_step()
        self._generation = self.rope.generation
        self._state.void = False
        self._losses.clear()
        self._count = self._digest = 0
        self.reporter.asks()
        if self.rope.size > 1:  # alone, no step is ever void
            self._buffers.remember()
        if self.rope.channel is not None:
            self.rope.channel.at = f"step {self._number}"

    def _extras(self) -> list[float]:
        wishes = (self.wish_stop, self.stop_reason is not None, self.wish_save)
        return [self._losses.total(), *map(float, wishes), float(self._count), *to_limbs(self._digest % 2**64)]

    def _commit(self, optimizer: Optimizer, reducer: Reducer, extras: list[float], clip: float | None) -> None:
        loss, stop, asked, save, count = extras[:5]
        batch = self._current()
        if not math.isfinite(loss):
            raise diverged(loss, self._number, batch, self._feeder)
        finite = reducer.treat(scale=self.precision.scale, clip=clip)
        self.precision.saw(finite)
        if finite:
            reducer.update(optimizer)
        self.skipped += not finite
        reducer.clear()
        self._substeps_done += 1
        self._seen += self._count
        if self.rope.size > 1:
            self._buffers.remember()
        if self._substeps_done == 1 and self._feeder is not None:
            order, at = self._feeder.order, (batch.epoch, batch.step)
            expected = (order.size(batch.step), self._feeder.lookahead.digest(*at))
            self.ledger.enter((*at, order.steps), int(count), from_limbs(extras[5:]), expected)
            self.last = Committed(
                self._number, batch.epoch, batch.step, loss, int(count), stop + asked > 0, asked > 0, save > 0
            )
            self.rope.steps = self._number + 1
            self.reporter.commit(self.last, self._count)

    def _void(self) -> None:
        """Nothing of this step was committed: forget its gradients and what its forward pass left in buffers."""
        self._redo = True
        self._reducers.forget()
        self._buffers.bring_back()

    def _regrouped(self) -> None:
        self._state.void = True  # what is left of this step was cut for other members
        self.reporter.repeat()
        if self._feeder:
            self._feeder.forget()

    def _current(self) -> Batch:
        if self._batch is None:
            raise UsageError("backward() and step() belong inside a loop over batches()")
        return self._batch


def session(*, plan: Plan | str | None = None, seed: int = 0) -> Session:
    """My session: of the run that started this process (cordee run, torchrun, mpirun, Slurm), or alone."""
    joined = join(world := World.from_env())
    chosen = Plan.parse(plan) if plan is not None else joined.plan
    chosen.check(world.size)
    made = Session(joined.rope, plan=chosen, seed=seed, device=joined.device, launched=joined.launched)
    made.tell("plan", {"plan": chosen.to_dict(), "faithfulness": chosen.faithfulness})
    if chosen.backend != joined.plan.backend:
        late = f"backend={chosen.backend} comes too late here: give it to `cordee run --plan`"
        made.tell("warning", {"message": late})
    return made
