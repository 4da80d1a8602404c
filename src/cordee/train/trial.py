"""A trial: some steps of a job, to see how fast it is. Nothing is evaluated, saved or exported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from cordee.train.ending import Outcome
from cordee.train.job import Job, Resolved, Save, Stop
from cordee.train.loop import run_job
from cordee.train.stepper import Stepper


def run_trial(job: Job, stepper: Stepper, *, out: Path, steps: int, batch_times: int = 1) -> None:
    """Train `steps` steps of `job` by its own loop and leave together; every worker of the run calls this."""
    run_job(trial_of(job, steps, batch_times), stepper, out=out, finish=lambda training: Outcome({}, None))
    while not stepper.leave():
        pass


def trial_of(job: Job, steps: int, batch_times: int = 1) -> Job:
    """`job` with `steps` steps of full batches, each `batch_times` its batch, and nothing else to do.

    The data is endless: no step is short because an epoch ends there, and little data is no hindrance. The schedule
    stays unless it was made for fewer steps than these; many schedules fail beyond their end.
    """
    own = None if job.epochs is None else job.epochs * job.order(Resolved(job.batch, 1.0)).steps
    return job.replace(
        data=dataclasses.replace(job.data, validation=None, test=None),
        batch=job.batch * batch_times,
        batch_per="step",
        scale_lr="none",
        epochs=None,
        steps_per_epoch=steps + 1,  # one more, so that no epoch ends
        stop=Stop(steps=steps),
        save=Save(epochs=None),
        schedule=job.schedule if own is None or own >= steps else None,
    )
