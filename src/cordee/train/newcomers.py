"""How a worker comes in to others that train already, or leaves them: between two steps, with the state that they have.

It makes its model, its optimizer and its data while the others go on. When it waits, they learn of it with the record
of their next step, let it in after that step, and one of them gives it what a checkpoint of this moment would hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from cordee.core.errors import JobError, WorkersLost
from cordee.group.team import Team
from cordee.state.handover import share_snapshot
from cordee.state.naming import Snapshot
from cordee.train.agreement import differing, in_json, of_job
from cordee.train.job import Job
from cordee.train.saving import Saver
from cordee.train.stepper import Stepper


def come_in(job: Job, team: Team) -> Snapshot:
    """Become one of the workers that train `job`, and get their state."""
    team.enter()
    snapshot = share_snapshot(team, _nothing)
    assert snapshot is not None
    if (theirs := snapshot.extra["asks"]) != (own := in_json(of_job(job, resume=False))):
        before, now = differing(theirs, own)
        raise JobError(f"the job has changed since the run began: {before} then, {now} now")
    return snapshot


def let_in(job: Job, stepper: Stepper, capture: Callable[[], Snapshot], saver: Saver) -> None:
    """After a step of `job`: let workers in that wait, and give them what `capture` gives; every worker calls this.

    A worker that was asked to leave does so here, and does not return.
    """
    if not stepper.team.awaited:
        return
    stepper.merge(saving=True)
    stepper.reporter.write()  # the record holds all steps before it
    came = stepper.team.admit()
    if stepper.team.membership.left:
        _leave(stepper, saver)
    if came:
        asks = in_json(of_job(job, resume=False))
        share_snapshot(stepper.team, lambda: capture().with_extra(asks=asks).copied())


def let_go(stepper: Stepper) -> None:
    """After a step of a loop of the user's own: those that were asked to leave do so; every worker calls this."""
    stepper.merge(saving=True)
    stepper.reporter.write()
    stepper.team.admit()
    if stepper.team.membership.left:
        _leave(stepper)


def _leave(stepper: Stepper, saver: Saver | None = None) -> NoReturn:
    """The others go on without this worker; what it has begun to write stands before it ends."""
    stepper.positions.leave()
    if saver is not None:
        with stepper.reporter.aside("saving"):
            saver.close()
    stepper.reporter.send()
    stepper.team.channel.part()
    raise SystemExit


def _nothing() -> Snapshot:
    raise WorkersLost("all workers that had the state of the training were lost")
