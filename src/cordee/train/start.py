"""The start of a training: what each worker makes by itself, and what all workers agree on before the first step.

A worker that enters a run in mid-run makes the same, from the snapshot that it was given, and skips the agreements: the
others made theirs before it came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from cordee.core.errors import CheckpointError
from cordee.core.events import JobEvent, WarningEvent
from cordee.core.world import World
from cordee.diagnose.preflight import check
from cordee.feed.order import Order
from cordee.state.handover import share_snapshot
from cordee.state.load import read_weights, take_weights
from cordee.state.naming import Snapshot
from cordee.train.agreement import agree_on, in_json, of_job, of_optimizer, share_model
from cordee.train.checks import subject_of
from cordee.train.cutting import Comparison, two_that_count
from cordee.train.devices import fuse
from cordee.train.early import EarlyMemory
from cordee.train.fitting import check_fits
from cordee.train.job import Job, Resolved
from cordee.train.placing import Layout
from cordee.train.saving import Saver, owners_of
from cordee.train.staging import plan_staging
from cordee.train.stepper import Stepper


@dataclass(frozen=True)
class Setup:
    """What is trained, and by what: made anew at each start of a run."""

    resolved: Resolved
    order: Order
    model: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler | None
    settings: Any
    """Those of the optimizer, as the job asks for them."""
    parameters: int
    """How many numbers the whole model trains or holds fixed."""

    @property
    def schedules(self) -> dict[str, LRScheduler]:
        """The schedule by its name in a checkpoint, if there is one."""
        return {"main": self.schedule} if self.schedule is not None else {}

    def describe(self, job: Job, steps: int) -> JobEvent:
        """What the record says of a start after so many steps."""
        return JobEvent(
            job.name,
            self.resolved.batch,
            job.epochs,
            self.order.steps,
            steps,
            parameters=self.parameters,
            samples={part: len(one) for part, one in job.data.sets.items() if one.traits.stream is None},
            last_step=job.last_step(self.order.steps),
            settings={
                **{name: getattr(job, name) for name in ("batch_per", "seed", "shuffle")},
                "lr_factor": self.resolved.lr_factor,
                "metrics": sorted(job.metrics),
            },
            order=self.order.describe(),
        )


def set_up(job: Job, stepper: Stepper, saver: Saver, *, resume: bool) -> tuple[Setup, Snapshot | None]:
    """Make what is trained, and agree on it with all workers; and read what a former start has saved."""
    team, tell = stepper.team, stepper.reporter.tell
    agree_on(team, of_job(job, resume=resume))
    saver.owners = owners_of(team, lambda name: stepper.split.writes(name))
    saver.check_shared(team)
    snapshot = share_snapshot(team, saver.latest) if resume else None
    first = team.membership.members[0]
    order, model, memory = _make_model(job, stepper, snapshot)
    with memory.explained():
        _put_on_device(job, stepper, order, model)
        if job.preflight:
            for message in check.before_training(subject_of(job, model), job.data.train, order, team, stepper.device):
                tell(WarningEvent(message))
        share_model(model, team, stepper.plan)
        if job.start_from is not None and snapshot is None and team.membership.members[0] != first:
            raise CheckpointError("the worker that read start_from was lost before all workers had it: start again")
        setup = _make_optimizer(job, stepper, order, model, snapshot)
        check_fits(job, stepper, order, setup.model, setup.optimizer)
    return setup, snapshot


def set_up_from(job: Job, stepper: Stepper, receive: Callable[[], Snapshot]) -> tuple[Setup, Snapshot]:
    """Make what is trained, for a worker that enters with a snapshot from the others, which `receive` gives.

    It calls no collective. The model is made before: the others wait for what follows.
    """
    order, model, memory = _make_model(job, stepper, None)
    with memory.explained():
        _put_on_device(job, stepper, order, model)
        snapshot = receive()
        order = job.order(_resolved(job, snapshot))
        return _make_optimizer(job, stepper, order, model, snapshot, agree=False), snapshot


def _make_model(job: Job, stepper: Stepper, snapshot: Snapshot | None) -> tuple[Order, nn.Module, EarlyMemory]:
    """The order of the data, and the model as the job makes it, if it can fit; local."""
    stepper.seed = job.seed
    order = job.order(_resolved(job, snapshot))
    torch.manual_seed(job.seed)
    model = job.make_model()
    memory = EarlyMemory(job, stepper, order, model)
    memory.check()
    if job.start_from is not None and snapshot is None and stepper.team.speaks:  # the others get them from it
        weights = read_weights(job.start_from)
        if message := take_weights(model, weights, where=job.start_from, partly=job.start_partly):
            stepper.reporter.tell(WarningEvent(message))
    return order, model, memory


def _put_on_device(job: Job, stepper: Stepper, order: Order, model: nn.Module) -> None:
    """All of the model, also where it is cut afterwards; local."""
    model.to(stepper.device)
    check.materialise(subject_of(job, model), job.data.train, order, stepper.device)


def _make_optimizer(
    job: Job, stepper: Stepper, order: Order, model: nn.Module, snapshot: Snapshot | None, *, agree: bool = True
) -> Setup:
    """Place the model, and make its optimizer and schedule; local, but that all workers `agree` on the optimizer."""
    resolved = _resolved(job, snapshot)
    stepper.updates = 1
    stepper.reducers.one_update = job.preflight  # which knows whether a pass needs the others; else the first step does
    parameters = sum(one.numel() for one in model.parameters())
    model = _place(job, stepper, order, model)
    optimizer = job.make_optimizer(model)
    if untrained := _untrained(model, optimizer):
        stepper.reporter.tell(WarningEvent(untrained))
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * resolved.lr_factor
    if stepper.plan.fused:
        fuse(optimizer, model)
    settings = in_json(of_optimizer(optimizer)["optimizer's settings"])
    schedule = job.make_schedule(optimizer)
    stepper.reducers.taken_up = [] if snapshot is None else snapshot.extra["sync"]
    stepper.sync_of(optimizer, agree=agree)
    return Setup(resolved, order, model, optimizer, schedule, settings, parameters)


def _place(job: Job, stepper: Stepper, order: Order, model: nn.Module) -> nn.Module:
    """What this worker holds of the model; all workers that hold a replica together call this."""
    if not stepper.team.sliced:
        return stepper.place(model)
    comparison = Comparison(job, model, two_that_count(job, order, stepper.device), stepper.team)
    staging = plan_staging(job, model, order, stepper) if stepper.plan.pipeline > 1 else None
    cut = comparison.choose(model, sequence=stepper.plan.sequence)
    model = stepper.place(model, Layout(cut, comparison.called, staging))
    for event in comparison.check(model, stepper.placing):
        stepper.reporter.tell(event)
    return model


def _resolved(job: Job, snapshot: Snapshot | None) -> Resolved:
    """By the workers that the run started with, not those that are left: all have to resolve the same."""
    return job.resolve(World.from_env().size) if snapshot is None else Resolved(**snapshot.extra["resolved"])


def _untrained(model: nn.Module, optimizer: Optimizer) -> str:
    """Which parameters the optimizer was not given, though they ask for gradients; empty if there are none."""
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    names = [name for name, one in model.named_parameters() if one.requires_grad and id(one) not in given]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the optimizer was not given {', '.join(names[:3])}{more}: they stay as they are" if names else ""
