"""The job's training loop, read from top to bottom."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from cordee.core.errors import CheckpointError
from cordee.core.events import EpochEvent, JobEvent, ResultEvent, WarningEvent
from cordee.core.world import World
from cordee.feed.batch import Batch
from cordee.feed.data import Data
from cordee.feed.order import Order
from cordee.feed.source import Source
from cordee.state.export import WEIGHTS, save_model
from cordee.state.handover import share_snapshot
from cordee.state.load import read_weights
from cordee.state.naming import Snapshot, capture, restore
from cordee.state.start import take_weights
from cordee.train.agreement import agree_on, differing, of_job, same_as_saved, settings_of
from cordee.train.best import Best
from cordee.train.checks import check_job
from cordee.train.compiling import training_loss
from cordee.train.devices import fuse
from cordee.train.evaluate import evaluate
from cordee.train.exporting import Exporter
from cordee.train.job import Job, Resolved
from cordee.train.ledger import Committed, Ledger
from cordee.train.precision import widened
from cordee.train.saving import Saver
from cordee.train.session import Session
from cordee.train.stepper import Stepper
from cordee.train.stopping import Ending, Patience, last_step, wishes


@dataclass(frozen=True)
class Outcome:
    """How a job ended on this worker."""

    result: dict[str, Any]
    interrupted: str | None
    """Why it ended early, if it was asked to."""


def run_job(job: Job, stepper: Stepper, *, out: Path, resume: bool = False) -> Outcome:
    """Train `job` by the steps of `stepper`, with its files in `out`; every worker of the run calls this."""
    training = _Training(job, stepper, out, resume=resume)
    stepper.team.channel.before_end = training.part
    training.start()
    training.train()
    return training.end()


class _Training:
    """The state of one training: what is made at the start, used in the loop and saved in checkpoints."""

    model: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler | None
    order: Order
    resolved: Resolved

    def __init__(self, job: Job, stepper: Stepper, out: Path, *, resume: bool) -> None:
        self.job, self.stepper, self.out = job, stepper, out
        self._session = Session(stepper)
        self.data: Data = job.data
        self.patience = Patience(job.stop.metric, job.stop.patience, job.stop.least_gain)
        self.best = Best(job)
        self.validation: dict[str, float] = {}
        self.next = (0, 0)
        self.interrupted: str | None = None
        self._wish = ""
        self._saver = Saver(out / "checkpoints", replace(job.save, keep_best=self.best.metric), stepper.team.channel)
        self._resume = resume
        self._began = self._saved_at = time.monotonic()
        self._samples_before = 0
        self._validated_at = -1

    def part(self) -> None:
        """The run ends early, here or on another worker: tell what is known, see through what is being written."""
        self.stepper.reporter.send()
        self._saver.see_through()
        self.stepper.reporter.send_timing()  # a step that was just being committed when the news came

    # ------------------------------------------------------------- start

    def start(self) -> None:
        """Make the model and its optimizer, check that they fit, and take up where a former start ended."""
        job, stepper = self.job, self.stepper
        stepper.seed = job.seed
        agree_on(stepper.team, of_job(job, resume=self._resume))
        snapshot = share_snapshot(stepper.team, self._saver.latest) if self._resume else None
        started_with = World.from_env().size  # not those that are left: all workers have to resolve the same
        self.resolved = job.resolve(started_with) if snapshot is None else Resolved(**snapshot.extra["resolved"])
        self.order = job.order(self.resolved)
        torch.manual_seed(job.seed)
        model = job.make_model().to(stepper.device)
        if job.start_from is not None and snapshot is None and stepper.team.speaks:
            found = read_weights(job.start_from)
            if told := take_weights(model, *found, where=job.start_from, partly=job.start_partly):
                stepper.reporter.tell(WarningEvent(told))
        stepper.updates = 1
        if job.preflight:
            for message in check_job(job, model, self.order, stepper.team, stepper.device):
                stepper.reporter.tell(WarningEvent(message))
        first = stepper.team.membership.members[0]
        self.model = stepper.prepare(model, compile=False)
        if job.start_from is not None and snapshot is None and stepper.team.membership.members[0] != first:
            raise CheckpointError("the worker that read start_from was lost before all workers had it: start again")
        self.optimizer = job.make_optimizer(self.model)
        self._untrained()
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * self.resolved.lr_factor
        if stepper.plan.fused:
            fuse(self.optimizer, self.model)
        self._settings = settings_of(self.optimizer)
        self.schedule = job.make_schedule(self.optimizer)
        stepper.sync_of(self.optimizer)
        if snapshot is not None:
            self._take_up(snapshot)
        job.check_schedule(self.schedule, last_step(self.job, self.order.steps), self.order.steps)
        self._samples_before = stepper.ledger.samples
        stepper.reporter.tell(self._describe())
        if (idle := stepper.team.replicas - self.resolved.batch) > 0:
            told = f"a step has {self.resolved.batch} samples: {idle} workers have nothing to do"
            stepper.reporter.tell(WarningEvent(told))

    def _untrained(self) -> None:
        """Say which parameters the optimizer was not given, though they ask for gradients."""
        given = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        names = [name for name, one in self.model.named_parameters() if one.requires_grad and id(one) not in given]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            told = f"the optimizer was not given {', '.join(names[:3])}{more}: they stay as they are"
            self.stepper.reporter.tell(WarningEvent(told))

    def _describe(self) -> JobEvent:
        steps, before = self.order.steps, self.next[0] * self.order.steps + self.next[1]
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return self.job.describe(self.resolved, steps, before, parameters, last_step(self.job, steps))

    def _first_ids(self, count: int) -> Any:
        return self.order.ids(0, 0, slice(0, min(count, self.order.size(0))))

    def _take_up(self, snapshot: Snapshot) -> None:
        extra = snapshot.extra
        same_as_saved("data", extra["data"], self.data.train.fingerprint)
        same_as_saved("batch", extra["asked"], self._asked())
        same_as_saved("order", extra["order"], self.order.describe())
        restore(snapshot, self.model, {"main": self.optimizer}, self._schedules())
        self.next = (extra["epoch"], extra["step"])
        self._saver.step = self.next[0] * self.order.steps + self.next[1]
        self.stepper.ledger = Ledger(**extra["ledger"])
        self.patience.take_up(extra["patience"])
        self.best.take_up(extra.get("best"))
        self.validation = extra["validation"]
        self.stepper.precision.take_up(extra.get("precision", {}))
        if (saved := extra.get("settings", self._settings)) != self._settings:
            before, now = differing(saved, self._settings)
            message = (
                f"the job asks for {now}, but the run goes on with {before}, which it began with: an optimizer is "
                "resumed as it was saved. start_from= takes only the weights"
            )
            self.stepper.reporter.tell(WarningEvent(message))
        self.stepper.last = Committed(**extra["last"]) if extra["last"] is not None else None

    def _asked(self) -> dict[str, Any]:
        """What the batch and the learning rate were resolved from: frozen with them."""
        return {"batch": self.job.batch, "batch_per": self.job.batch_per, "scale_lr": self.job.scale_lr}

    def _schedules(self) -> dict[str, LRScheduler]:
        return {"main": self.schedule} if self.schedule is not None else {}

    # ------------------------------------------------------------- the loop

    def train(self) -> None:
        """Step by step, until something says that it is enough."""
        job, stepper = self.job, self.stepper
        self._call("on_start")
        if self.patience.exhausted or self._enough(self.order.steps * self.next[0] + self.next[1]):
            return
        batches = stepper.batches(
            self.data.train,
            batch=self.resolved.batch,
            epochs=job.epochs,
            order=self.order,
            weigh=job.weigh,
            start=self.next,
        )
        self.model.train()
        if stepper.plan.compile:
            stepper.reporter.tell(WarningEvent("the model is compiled in the first step, which takes longer"))
        loss_of = training_loss(job, self.model, stepper.plan, alone=stepper.team.alone)
        for batch in batches:
            with stepper.precision.autocast():
                loss = loss_of(batch)
            stepper.backward(loss)
            self._saver.before_update()
            if not stepper.step(self.optimizer, clip=job.clip):
                continue
            assert stepper.last is not None
            if self._after_step(stepper.last):
                break
        if self.next[1] != 0 and self.interrupted is None and self._validate(self.next[0], passing=True):
            self._saver.step = -1  # a checkpoint of this step does not know its metrics yet

    def _after_step(self, done: Committed) -> bool:
        """Everything that follows a committed step; True ends the training."""
        job, wish = self.job, self.stepper.wish
        end_of_epoch = done.step + 1 == self.order.steps
        self.next = (done.epoch + 1, 0) if end_of_epoch else (done.epoch, done.step + 1)
        if self.schedule is not None and (job.schedule_per == "step" or end_of_epoch):
            self.schedule.step()
        self._call("on_step", done)
        if end_of_epoch:
            self._end_epoch(done)
        wish.stop |= self._wishes_to_stop(done)
        wish.save = job.save.seconds is not None and time.monotonic() - self._saved_at >= job.save.seconds
        if done.save or self._due(done, end_of_epoch):
            self.save()
        if done.asked:  # agreed with the step: the launcher's own word may not have reached every worker yet
            self.interrupted = self.stepper.team.channel.stop_reason or "interrupted"
        return done.stop or self.patience.exhausted or self._enough(done.steps)

    def _end_epoch(self, done: Committed) -> None:
        self._call("on_epoch", done.epoch)
        before = self.stepper.reporter.aside_s.get("evaluation", 0.0)
        if self._validate(done.epoch):
            self.patience.see(self.validation)
        ms = round((self.stepper.reporter.aside_s.get("evaluation", 0.0) - before) * 1e3, 3)
        self.stepper.reporter.tell(EpochEvent(done.epoch, done.steps, done.loss, self.validation, ms))

    def _validate(self, epoch: int, *, passing: bool = False) -> bool:
        if self.data.validation is not None:
            self.validation = self._evaluate("validation", self.data.validation)
            self._validated_at = self.stepper.done
            self.best.see(self._validated_at, epoch, self.validation, passing=passing)
        return self.data.validation is not None

    def _wishes_to_stop(self, done: Committed) -> bool:
        stop = self.job.stop
        late = stop.minutes is not None and time.monotonic() - self._began >= 60 * stop.minutes
        if late or (stop.when is not None and bool(stop.when(done))):
            self._wish = self._wish or wishes(stop)[0 if late else -1]
            return True
        return False

    def _enough(self, steps: int) -> bool:
        return self.job.stop.steps is not None and steps >= self.job.stop.steps

    def _due(self, done: Committed, end_of_epoch: bool) -> bool:
        save = self.job.save
        by_step = save.steps is not None and done.steps % save.steps == 0
        best = self.best.step == done.steps  # measured at this moment: kept, to be brought back at the end
        return by_step or best or (end_of_epoch and save.epochs is not None and (done.epoch + 1) % save.epochs == 0)

    # ------------------------------------------------------------- evaluation, checkpoints, end

    def _evaluate(self, part: str, source: Source) -> dict[str, float]:
        with self.stepper.reporter.aside("evaluation"):
            self.stepper.merge()
            metrics = evaluate(
                self.model,
                source,
                self.stepper.team,
                batch=self.job.eval_batch or self.resolved.batch,
                judge=self._judge,
                metrics=self.job.metrics,
                weigh=self.job.weigh,
            )
        self._call("on_evaluation", part, metrics)
        return metrics

    def _judge(self, model: nn.Module, batch: Batch) -> tuple[Any, Any, Any]:
        with self.stepper.precision.autocast():
            loss, output = self.job.compute(model, batch)
        return loss, widened(output), self.job.target_of(batch) if self.job.metrics else None

    def save(self) -> None:
        """A checkpoint of this moment, written in the background by the worker that speaks for all."""
        self._saved_at = time.monotonic()
        with self.stepper.reporter.aside("saving"):
            self.stepper.merge()
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        if self.stepper.team.speaks:
            step = self.stepper.done
            # Metrics belong to the step that they were measured at, not to those after it.
            self._saver.write(step, self._capture, self.validation if self._validated_at == step else {})

    def _capture(self) -> Snapshot:
        epoch, step = self.next
        return capture(self.model, {"main": self.optimizer}, self._schedules(), live=True).with_extra(
            epoch=epoch,
            step=step,
            resolved=asdict(self.resolved),
            data=self.data.train.fingerprint,
            order=self.order.describe(),
            ledger=self.stepper.ledger.to_dict(),
            patience=self.patience.to_dict(),
            best=self.best.to_dict(),
            validation=self.validation,
            asked=self._asked(),
            precision=self.stepper.precision.to_dict(),
            settings=self._settings,
            last=asdict(self.stepper.last) if self.stepper.last is not None else None,
        )

    def end(self) -> Outcome:
        """Test, write what is left, and leave together; a worker that takes over as speaker does it anew."""
        brought_back = self._bring_back_best()
        test = {}
        if self.data.test is not None and self.interrupted is None:
            test = self._evaluate("test", self.data.test)
        exporter = Exporter(self.job, self.stepper, self._first_ids(3), self._saver)
        if self.interrupted is None:
            exporter.trace(self.model)
        with self.stepper.reporter.aside("saving"):
            self._saver.before_update()
        self._call("on_end")
        self.stepper.merge()
        while True:
            checksum = self._write_files(brought_back, exporter) if self.stepper.team.speaks else ""
            result = {**self._result(test, brought_back), "params_sha256": checksum}
            if self.stepper.ledger.lost or self.stepper.ledger.repeated:
                self.stepper.reporter.tell(WarningEvent(self.stepper.ledger.told()))
            self.stepper.reporter.tell(ResultEvent(result))
            if self.stepper.leave():
                return Outcome(result, self.interrupted)

    def _write_files(self, brought_back: bool, exporter: Exporter) -> str:
        """The last checkpoint, the model and its program; the checksum of its weights."""
        aside = self.stepper.reporter.aside
        if not brought_back:  # otherwise it stands, and the model is no longer that of the last step
            with aside("saving"):
                self._write_checkpoint()
        if self.interrupted is None:
            exporter.write(self.model, self.out)
        with aside("saving"):
            self._saver.close()
            return save_model(self.out / WEIGHTS, capture(self.model, live=True))

    def _bring_back_best(self) -> bool:
        """Put the best model in the place of the last, of which a checkpoint stands before: a run goes on with that."""
        if self.best.step in (-1, self.stepper.done) or self.interrupted is not None:
            return False
        self.stepper.merge()
        with self.stepper.reporter.aside("saving"):
            return self.best.bring_back(self.stepper, self.model, self._write_last)

    def _write_last(self) -> Saver:
        self._write_checkpoint()
        self._saver.close()
        return self._saver

    def _result(self, test: dict[str, float], brought_back: bool) -> dict[str, Any]:
        stepper, timing = self.stepper, self.stepper.reporter.timing
        seconds = timing.total_s
        samples = stepper.ledger.samples - self._samples_before
        best = brought_back or self.best.step == stepper.done
        ending = Ending(stepper.done, self.next[0], self.interrupted, self.patience.exhausted, self._wish)
        return {
            "steps": stepper.done,
            "epochs": self.next[0],
            "ended": ending.told(self.job.stop, self.job.epochs),
            "samples": stepper.ledger.samples,
            "workers": stepper.team.membership.size,
            "loss": stepper.last.loss if stepper.last is not None else None,
            "validation": self.best.validation if best else self.validation,
            "test": test,
            "model": "best" if best else "last",
            "best": self.best.told(),
            "throughput": round(samples / seconds, 2) if seconds else 0.0,
            "step_ms": timing.percentiles(),
            "order_sha256": stepper.ledger.order_sha256,
            "steps_skipped": stepper.precision.skipped,
            "samples_lost": stepper.ledger.lost,
            "samples_repeated": stepper.ledger.repeated,
            "other_s": {kind: round(seconds, 4) for kind, seconds in stepper.reporter.aside_s.items()},
        }

    def _call(self, name: str, *args: Any) -> None:
        if not self.job.callbacks:
            return
        with self.stepper.reporter.calling_back():
            for callback in self.job.callbacks:
                getattr(callback, name)(self._session, *args)
