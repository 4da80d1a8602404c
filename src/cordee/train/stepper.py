"""The steps of one worker: batches, backward passes, commits and updates, put together from Feed, Sync and the team.

The face of it for users is `Session`; the loop of a job, and what belongs to it, use it directly. When a peer is lost,
nothing is raised here: the step is void, `step` returns False, and `batches` yields the same step again, newly shared
among the survivors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.plan import Plan
from cordee.diagnose.diverged import explain_divergence
from cordee.diagnose.statistical import warn_statistical
from cordee.feed.batch import Batch
from cordee.feed.data import as_source
from cordee.feed.feeder import Slot, Weigh
from cordee.feed.order import Order
from cordee.group.team import Team
from cordee.split.seam import Split
from cordee.split.tensor import TensorPlan
from cordee.sync.batchnorm import StepState
from cordee.sync.gradients import drop
from cordee.sync.meeting_points import meeting_points
from cordee.sync.seam import Agreed, Sync, Treatment
from cordee.train.agreement import of_data, share_model
from cordee.train.balancing import Balancing
from cordee.train.buffers import Buffers
from cordee.train.committing import Told, do_part, enter, record_of
from cordee.train.ledger import Committed, Ledger
from cordee.train.loops import Loop, Loops, Start
from cordee.train.norms import Norms, learning_rate
from cordee.train.placing import WHOLE, Layout, Placing
from cordee.train.positions import Positions
from cordee.train.precision import Precision
from cordee.train.reducers import Reducers
from cordee.train.reporter import Reporter
from cordee.train.shares import begin_passes
from cordee.train.trail import Trail
from cordee.train.windows import Boundary, steps_at_hand


@dataclass
class Wishes:
    """What this worker wishes; all workers learn of it with the next step that commits."""

    stop: bool = False
    """End the loop over batches on all workers, after that step."""
    save: bool = False
    """Reported as `last.save` of that step; to save is the affair of the loop."""


class Stepper:
    """Computes the share of one worker of each step, and commits the step with the others."""

    def __init__(
        self, team: Team | None = None, *, plan: Plan | None = None, seed: int = 0, device: str = "cpu"
    ) -> None:
        """`team` is None for one process alone."""
        self.team, self.plan, self.seed, self.device = team or Team(), plan or Plan(), seed, device
        self.ledger, self.reporter = Ledger(), Reporter(self.team)
        self.last: Committed | None = None
        """The step that was committed last; None before the first."""
        self.news: list[Committed] = []
        """What the last `step` that returned True has committed: a step, or all steps of a window."""
        self.boundary: Boundary = lambda step: None
        """Where a window has to end before its time."""
        self.wish, self.state = Wishes(), StepState()
        """What this worker wishes; and the state of the open step."""
        self.placing = Placing(self.team, self.plan, self.state, device)
        self.models: list[nn.Module] = []
        """What `prepare` was given, in that order."""
        self.updates: int | None = None
        """How many updates a step has, where that is known before: a job's has one. None: as many as the loop makes."""
        warn = partial(warn_statistical, self.team, self.plan)
        self.buffers = Buffers(self.team.layers, self.state, self.models, warn)
        self._trail, self.loops, self.positions = Trail(self.buffers), Loops(), Positions(self)
        self.reducers = Reducers(self.team, self.plan, self.models, self.placing)
        self._norms = Norms(self.models, self.reporter.came)
        self.precision, self.balancing = Precision(self.plan.precision, device), Balancing(self)
        self.number = 0
        """Steps that were committed before the one in whose body we are, over all epochs."""
        self.team.on_regroup.append(self._regrouped)
        self.reporter.introduce(device, torch.get_num_threads())

    @property
    def split(self) -> Split:
        """How the model that was placed last lies over workers."""
        return self.placing.split

    @property
    def done(self) -> int:
        """Steps committed so far, the one in whose body we are included; evaluations do not count."""
        return self.last.steps if self.last is not None else self.number

    def close(self, *, stay: bool = False) -> None:
        """Come to the end together with the other workers; with `stay`, this worker remains one of the team."""
        self.loops.check_merged("the loop over batches() was left")
        self._norms.late()
        self.positions.end()
        self.reducers.close()
        if stay:
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

    def prepare(self, model: nn.Module, *, compile: bool = True, tensor_plan: TensorPlan | None = None) -> nn.Module:
        """Make `model` ready: on the device, the same on every worker, BatchNorm over the global batch."""
        model = model.to(self.device)
        share_model(model, self.team, self.plan)
        model = self.place(model, Layout(tensor_plan))
        if self.plan.compile and compile:
            model.compile()
        return model

    def place(self, model: nn.Module, layout: Layout = WHOLE) -> nn.Module:
        """The local part of `prepare`, for a model that is the same on every worker already; see `Placing.place`."""
        model = self.placing.place(model, layout)
        self.models.append(model)
        self.buffers.watch(model)
        return model

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
        """My share of each global batch; see `Session.batches`."""
        source = as_source(data)
        shuffle = "full" if source.traits.stream is None else "none"
        order = order or Order(len(source), batch, seed=self.seed, shuffle=shuffle)
        first, end = self.loops.first(source.fingerprint, data, start, epochs)
        place = {"data": of_data(source), "epochs": epochs, "from (epoch, step)": first}
        self.reducers.loop = place | order.describe()
        self.reducers.one_update = self.updates == 1
        loop = Loop(self, source, order, weigh, data)
        before = first[0] * order.steps + first[1]  # of the run that a script goes on with
        if source.traits.stream is not None:
            source.traits.stream.begin(int(order.ids(*first)[0]), keep=steps_at_hand(self.plan) * order.batch)
        self.number = before if start is not None and before else self.team.steps
        with self.loops.opened(loop, self.state, self.reducers.forget):
            loop.guard.begin_loop(self.models)
            if len(self.loops.open) == 1:  # not inside another one
                self._trail.most = self.updates
                self.reporter.start()
            for slot in loop.windows.slots(loop, first, end):
                yield from self._one_step(loop, slot)
                if loop.redo:
                    continue
                committed, loop.done, loop.committed = loop.committed, 0, 0
                self.number = self.team.steps if committed else self.number  # a loop that evaluates commits nothing
                if committed and self.loops.ends(self.last, self.team):
                    return

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of my share; see `Session.backward`."""
        loop, batch = self.loops.current()
        weight = begin_passes(self, loop)
        met = meeting_points(loss) if weight and not batch.weight and not batch.borrowed else []
        self.placing.begin_backward(last=batch.last)
        early = self.reducers.only() if batch.last and not self.state.void else None
        if loop.backwards > 1 and batch.last:
            self.state.void |= not self.reducers.hold_back()
            early = None
        factor = batch.weight / weight if weight else 0.0
        if batch.weight:
            loop.losses.add(loss, batch.weight, loop.place)
        self.reducers.backward(loss, factor * self.precision.scale, met, early, partial(record_of, self, loop))
        if loop.guard.looks:
            loop.guard.seal(self.reducers.all_parameters(), sent=not self.team.alone)

    def step(self, optimizer: Optimizer, *, clip: float | None = None) -> bool:
        """Agree on the gradient, update, commit; see `Session.step`."""
        loop, batch = self.loops.current()
        if loop.redo:  # an update before was void, and with it the rest of this step
            self.reducers.forget(more=True)
        if loop.redo or not batch.last:
            return False
        self.precision.check_entered()
        loop.guard.step(optimizer)
        if loop.windows.window is not None:
            return do_part(self, loop, optimizer, clip)
        sync = self.sync_of(optimizer)
        loop.updates += 1
        if loop.updates <= loop.done:  # made before the peer was lost; only what came after it is agreed on anew
            drop(sync.parameters)
            self._trail.again()
            loop.guard.committed(sync.parameters)
            return True
        if loop.generation != self.team.membership.generation:
            self.void(loop)
            return False
        self.buffers.agree(loop.count, exact=self.plan.accumulate == 1 and not self.split.partly)
        self.reporter.arrives()
        treatment = Treatment(self.precision.scale, clip)
        agreed = sync.commit(partial(record_of, self, loop), void=self.state.void, treatment=treatment)
        if agreed is None or not self.buffers.commit(agreed.record.news):
            self.void(loop)
            return False
        told = self.update(loop, optimizer, sync, agreed := loop.weighed(agreed, sync))
        if loop.done == 1:
            enter(self, loop, [agreed.record], [loop.count], told)
        return True

    def merge(self, *, saving: bool = False) -> None:
        """Make all replicas equal before they are measured or saved; see `Session.agree`."""
        self.loops.check_merged("the model was to be measured or saved")
        self._norms.late()
        self.reducers.merge(saving=saving)
        if self.plan.statistics == "replica" and self.plan.window is None:  # a window merges them at its end
            self.buffers.merge(self.team)

    def sync_of(self, optimizer: Optimizer, *, agree: bool = True) -> Sync:
        """What agrees on this optimizer's parameters. Without `agree`, a new one is not compared with the others'."""
        sync, sound = self.reducers.of(optimizer, agree=agree)
        self.state.void |= not sound
        self._trail.least = self.reducers.least if self.updates is None else 1
        return sync

    def _one_step(self, loop: Loop, slot: Slot) -> Iterator[Batch]:
        """Yield the micro-batches of one step; afterwards `redo` says whether it has to be done again."""
        self._begin_step(loop)
        for begins, batch in loop.take(slot):
            self.state.silent = batch.borrowed
            if begins is not None:
                loop.seed(self.device, self.seed, begins)
            self.reporter.got()
            yield batch
            self.loops.resume(loop)
            loop.see()
            if loop.redo:
                return
            self.reporter.asks()
        loop.guard.end_step(self.models, updates=loop.updates)
        loop.batch = None

    def _begin_step(self, loop: Loop) -> None:
        self.positions.begin(loop)
        self.balancing.begin()
        loop.begin_step(self.team.membership.generation)
        loop.guard.begin_step()
        self.reporter.asks()
        self.state.void = False
        if self.loops.inside_open:  # it may only look: what the step around it comes back to stays
            return
        if not loop.done:  # not when a step is done again after its first update
            self.precision.begin_step()
            self._trail.begin()
        if not (self.team.alone or loop.windows.taken):  # otherwise, no step is ever void
            self.buffers.begin()
        loop.buffers_before = self.buffers.snapshot() if loop.windows.again else None
        self.team.channel.at = f"step {self.number + loop.windows.ahead}"

    def update(self, loop: Loop, optimizer: Optimizer, sync: Sync, agreed: Agreed) -> Told:
        """Update the parameters by a gradient that is agreed on; what there is to tell of it."""
        _, batch = self.loops.current()
        record, fits, norm = agreed
        number = self.number + loop.windows.ahead
        if not math.isfinite(record.loss):
            raise explain_divergence(record.mean_loss, number, batch, loop.feeder)
        self._norms.late()
        self.precision.saw(fits)
        grad_norm = self._norms.see(norm, sync.parameters, (number, batch.epoch)) if fits else None
        rate = learning_rate(optimizer)
        self._trail.before(sync.parameters, alone=self.team.alone or loop.windows.taken)
        if fits:
            sync.update(optimizer)
        drop(sync.parameters)
        self._trail.after()
        loop.guard.committed(sync.parameters)
        loop.done, loop.open = loop.done + 1, False
        self.buffers.seen += loop.count
        return grad_norm, rate, fits and grad_norm is None

    def void(self, loop: Loop) -> None:
        """This step is done again: forget its gradients, and what it did to parameters and buffers."""
        loop.redo = self.state.void = True
        loop.feeder.forget()
        self.reducers.forget(more=True)  # an optimizer that has not stepped yet has no reducer
        self._trail.back()
        self.buffers.end_step()

    def _regrouped(self) -> None:
        self.state.void = True  # what is left of this step was cut for other members
        self.placing.regrouped()
        self.reporter.repeat()
        self.loops.forget()
