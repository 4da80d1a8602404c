"""The job's training loop, read from top to bottom: start, steps, evaluations, checkpoints; `ending.py` has the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from cordee.core.errors import JobError
from cordee.core.events import EpochEvent, WarningEvent
from cordee.feed.batch import Batch
from cordee.feed.features import save_features
from cordee.feed.share import Shares
from cordee.feed.source import Source
from cordee.split.tensor import holding_together
from cordee.state.naming import Snapshot, capture, restore
from cordee.train.agreement import differing, refuse_another, without_counts
from cordee.train.compiling import Loss, training_loss
from cordee.train.copying import Memory
from cordee.train.devices import conditions
from cordee.train.ending import Outcome, end
from cordee.train.evaluate import evaluate
from cordee.train.job import Job
from cordee.train.ledger import Committed, Ledger
from cordee.train.newcomers import let_in
from cordee.train.piping import Piping
from cordee.train.saving import Saver
from cordee.train.session import Session
from cordee.train.shares import Computed
from cordee.train.start import Setup, set_up, set_up_from
from cordee.train.stepper import Stepper
from cordee.train.stopping import Evaluations, boundary


def run_job(
    job: Job,
    stepper: Stepper,
    *,
    out: Path,
    resume: bool = False,
    memory: Memory | None = None,
    receive: Callable[[], Snapshot] | None = None,
    finish: Callable[[Training], Outcome] = end,
) -> Outcome:
    """Train `job` by the steps of `stepper`, with its files in `out`; every worker of the run calls this.

    `memory` is for copies of the state, and may hold the newest one. A worker that enters in mid-run gets a snapshot of
    the others by `receive`; they take it with `Training.handed`.
    """
    evaluations = Evaluations(job.stop, job.save.keep_best)
    saver = Saver(out / "checkpoints", replace(job.save, keep_best=evaluations.metric), stepper.team.channel, memory)
    stepper.team.channel.before_end = partial(_part, stepper, saver)
    with holding_together(stepper.team):
        if receive is None:
            setup, snapshot = set_up(job, stepper, saver, resume=resume)
        else:
            setup, snapshot = set_up_from(job, stepper, receive)
        training = Training(job, stepper, setup, saver, evaluations, out)
        if snapshot is not None:
            training.take_up(snapshot)
        del snapshot  # weights and optimizer state of the whole model, in host memory
        job.check_schedule(setup.schedule, job.last_step(setup.order.steps), setup.order.steps)
        if receive is None:
            tell, batch = stepper.reporter.tell, setup.resolved.batch
            tell(setup.describe(job, training.steps))
            most = min(batch, stepper.plan.pieces) if stepper.plan.exact else batch
            if (idle := stepper.team.shares - most) > 0:
                each = stepper.team.membership.size // stepper.team.shares
                what = "samples" if most == batch else "pieces"
                tell(WarningEvent(f"a step has {most} {what}: {idle * each} workers have nothing to do"))
        else:  # no checkpoint of this moment was written
            saver.step, stepper.team.channel.joining = -1, False
        training.train()
        return finish(training)


def _part(stepper: Stepper, saver: Saver) -> None:
    """The run ends early, here or on another worker: tell what is known, see through what is being written."""
    stepper.reporter.send()
    saver.see_through()
    stepper.reporter.send_timing()  # a step that was just being committed when the news came


class Training:
    """A training on its way: what it trains, and how far it has come."""

    def __init__(
        self, job: Job, stepper: Stepper, setup: Setup, saver: Saver, evaluations: Evaluations, out: Path
    ) -> None:
        """At its beginning; `take_up` moves it to where a snapshot was taken."""
        self.job, self.stepper, self.setup, self.saver, self.out = job, stepper, setup, saver, out
        self.evaluations = evaluations
        self.validation: dict[str, float] = {}
        self.next = (0, 0)
        """The step that comes next: its epoch, and its place there."""
        self.interrupted: str | None = None
        """Why it was asked to end early; None if it was not."""
        self.samples_before = 0
        """Those of former starts."""
        self._session = Session(stepper)
        self._began = self._saved_at = time.monotonic()
        self._validated_at = -1
        self._every = stepper.plan.copy_every or None
        """Steps between two copies of the state into memory."""

    @property
    def steps(self) -> int:
        """How many steps come before the next one."""
        return self.next[0] * self.setup.order.steps + self.next[1]

    # ------------------------------------------------------------- steps

    def train(self) -> None:
        """Step by step, until something says that it is enough."""
        job, stepper, setup = self.job, self.stepper, self.setup
        self.call("on_start")
        if stepper.team.speaks:
            save_features(self.out, job.data.features)
            for note in job.data.notes:
                stepper.reporter.tell(WarningEvent(note))
        if self._enough():
            return
        batches = stepper.batches(
            job.data.train,
            batch=setup.resolved.batch,
            epochs=job.epochs,
            order=setup.order,
            weigh=job.weigh,
            start=self.next,
        )
        setup.model.train()
        if stepper.plan.compile:
            stepper.reporter.tell(WarningEvent("the model is compiled in the first step, which takes longer"))
        stepper.boundary = partial(boundary, job, setup.order.steps, stepper.plan.copy_every)
        alone = stepper.team.alone and not stepper.team.grows
        loss_of = training_loss(job, setup.model, stepper.plan, alone=alone)
        piping = Piping(stepper.team, stepper.split, stepper.reporter)
        for batch in batches:
            stepper.split.run(Computed(stepper, batch, partial(self._loss, loss_of), job.weigh))
            if self.saver.live:
                with stepper.reporter.aside("saving"):
                    self.saver.before_update()
            if not stepper.step(setup.optimizer, clip=job.clip):
                continue
            for done in stepper.news:
                piping.see(done.number + 1)
                ends = self._after_step(done)
            if ends:  # the last of them, if any
                break
            let_in(job, stepper, self.handed)
        if self.next[1] != 0 and self.interrupted is None and self._validate(self.next[0], passing=True):
            self.saver.step = -1  # a checkpoint of this step does not know its metrics yet

    def _loss(self, loss_of: Loss, batch: Batch) -> Tensor:
        with self.stepper.precision.autocast():
            return loss_of(batch)

    def _after_step(self, done: Committed) -> bool:
        """Everything that follows a committed step; True ends the training."""
        job, setup, wish = self.job, self.setup, self.stepper.wish
        end_of_epoch = done.step + 1 == setup.order.steps
        self.next = (done.epoch + 1, 0) if end_of_epoch else (done.epoch, done.step + 1)
        if setup.schedule is not None and (job.schedule_per == "step" or end_of_epoch):
            setup.schedule.step()
        self.call("on_step", done)
        if end_of_epoch:
            self._end_epoch(done)
        now = time.monotonic()
        wish.stop |= job.stop.minutes is not None and now - self._began >= 60 * job.stop.minutes
        wish.stop |= job.stop.when is not None and bool(job.stop.when(done))
        wish.save = job.save.seconds is not None and now - self._saved_at >= job.save.seconds
        copied = self._every is not None and done.steps % self._every == 0
        saved = done.save or self._due(done, end_of_epoch)
        if copied or saved:
            self._save(copied=copied, saved=saved)
        if done.asked:  # agreed with the step: the launcher's own word may not have reached every worker yet
            self.interrupted = self.stepper.team.channel.stop_reason or "interrupted"
        return done.stop or self._enough()

    def _end_epoch(self, done: Committed) -> None:
        self.call("on_epoch", done.epoch)
        before = self.stepper.reporter.aside_s.get("evaluation", 0.0)
        self._validate(done.epoch)
        ms = round((self.stepper.reporter.aside_s.get("evaluation", 0.0) - before) * 1e3, 3)
        self.stepper.reporter.fed.send()
        self.stepper.reporter.tell(EpochEvent(done.epoch, done.steps, done.loss, self.validation, ms))

    def _enough(self) -> bool:
        return self.evaluations.exhausted or (self.job.stop.steps is not None and self.steps >= self.job.stop.steps)

    def _due(self, done: Committed, end_of_epoch: bool) -> bool:
        save = self.job.save
        by_step = save.steps is not None and done.steps % save.steps == 0
        best = self.evaluations.step == done.steps  # measured at this moment: kept, to be brought back at the end
        return by_step or best or (end_of_epoch and save.epochs is not None and (done.epoch + 1) % save.epochs == 0)

    def call(self, name: str, *args: Any) -> None:
        """Call this method of all callbacks."""
        if self.job.callbacks:
            with self.stepper.reporter.calling_back():
                for callback in self.job.callbacks:
                    getattr(callback, name)(self._session, *args)

    # ------------------------------------------------------------- evaluation

    def _validate(self, epoch: int, *, passing: bool = False) -> bool:
        if (source := self.job.data.validation) is not None:
            self.validation = self.evaluate("validation", source)
            self._validated_at = self.stepper.done
            self.evaluations.see(self._validated_at, epoch, self.validation, passing=passing)
        return source is not None

    def evaluate(self, part: str, source: Source) -> dict[str, float]:
        """Loss and metrics of the model as it is now, over a part of the data; the same on every worker."""
        with self.stepper.reporter.aside("evaluation"):
            self.stepper.merge()
            metrics = evaluate(
                self.job,
                self.setup.model,
                source,
                self.stepper.team,
                self.stepper.split,
                batch=self.job.eval_batch or self.setup.resolved.batch,
                precision=self.stepper.precision,
                pieces=self.stepper.plan.pieces if self.stepper.plan.exact else 0,
            )
        self.call("on_evaluation", part, metrics)
        return metrics

    # ------------------------------------------------------------- what is kept

    def _save(self, *, copied: bool, saved: bool) -> None:
        """The state of this moment, in the background by the workers of the first replica: into memory, to disk."""
        with self.stepper.reporter.aside("saving"):
            self.stepper.merge(saving=True)
            if copied and self.stepper.team.replica == 0:
                self.saver.copy(self.stepper.done, self._capture)
            if saved:
                self._saved_at = time.monotonic()
                self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """The same, of parameters that are merged already."""
        if self.stepper.team.replica == 0:
            step = self.stepper.done
            # Metrics belong to the step that they were measured at, not to those after it.
            self.saver.write(step, self._capture, self.validation if self._validated_at == step else {})

    def _capture(self) -> Snapshot:
        """This moment, between two steps; its large tensors are those of the training itself."""
        stepper, setup = self.stepper, self.setup
        called = stepper.split.aliases
        tensors = capture(setup.model, {"main": setup.optimizer}, setup.schedules, live=True, called=called)
        return tensors.with_extra(
            next=list(self.next),
            resolved=asdict(setup.resolved),
            trained_on=self._trained_on(),
            settings=setup.settings,
            ledger=asdict(stepper.ledger),
            last=asdict(stepper.last) if stepper.last is not None else None,
            exact=conditions(stepper.plan.pieces, stepper.device) if stepper.plan.exact else None,
            evaluations=self.evaluations.to_dict(),
            validation=self.validation,
            precision=stepper.precision.to_dict(),
            sync=stepper.reducers.kept,
        )

    def handed(self) -> Snapshot:
        """What a worker that enters now is to receive: this moment, which buffers live, and the agreed shares.

        A checkpoint keeps neither: living buffers are found again, and a resumed run begins with the plan's shares.
        """
        shares = self.stepper.loops.shares
        return self._capture().with_extra(
            living=self.stepper.buffers.living(), shares=None if shares is None else shares.to_list()
        )

    def take_up(self, snapshot: Snapshot) -> None:
        """Continue where the snapshot was taken."""
        stepper, setup, kept = self.stepper, self.setup, snapshot.extra
        refuse_another(kept["trained_on"], self._trained_on())
        split, optimizers = stepper.split, {"main": setup.optimizer}
        restore(
            snapshot,
            setup.model,
            optimizers,
            setup.schedules,
            partly=split.partly,
            called=split.aliases,
            on_host=stepper.plan.offload in ("optimizer", "all"),
        )
        self._check_alike(kept.get("exact"))
        self.next = tuple(kept["next"])
        self.saver.took_up(self.steps)
        stepper.ledger = Ledger(**kept["ledger"])
        self.samples_before = stepper.ledger.samples
        self.evaluations.take_up(kept["evaluations"])
        self.validation = kept["validation"]
        stepper.precision.take_up(kept["precision"])
        stepper.last = Committed(**kept["last"]) if kept["last"] is not None else None
        stepper.buffers.take_up(kept.get("living", ()))
        stepper.loops.shares = Shares.from_list(kept["shares"]) if kept.get("shares") else None
        if (settings := without_counts(kept["settings"])) != setup.settings:
            before, asked = differing(settings, setup.settings)
            message = (
                f"the job asks for {asked}, but the run goes on with {before}, which it began with: an optimizer is "
                "resumed as it was saved. start_from= takes only the weights"
            )
            stepper.reporter.tell(WarningEvent(message))

    def _check_alike(self, before: dict[str, Any] | None) -> None:
        """Of exact=true: what results depend on has to be what it was when the snapshot was taken."""
        stepper = self.stepper
        now = conditions(stepper.plan.pieces, stepper.device) if stepper.plan.exact else None
        if before is None or now is None or before == now:
            return
        told = "exact=true: the run had {}, here it is {}".format(*differing(before, now))
        if stepper.team.channel.joining:
            raise JobError(f"{told}, which makes other bits: give the new worker what the others have")
        stepper.reporter.tell(WarningEvent(f"{told}: from here on, its bits are not those it would have had there"))

    def _trained_on(self) -> dict[str, Any]:
        """What a run cannot change when it goes on, and what its batch and learning rate were resolved from."""
        asked = {name: getattr(self.job, name) for name in ("batch", "batch_per", "scale_lr")}
        return {"data": self.job.data.train.fingerprint, "batch": asked, "order": self.setup.order.describe()}
