"""How far a run has come, and what follows from a signal: transitions of one value."""

from __future__ import annotations

from cordee.core.errors import CordeeError, Interrupted, WorkersLost
from cordee.core.events import JobEvent, StepEvent, WarningEvent
from cordee.runtime.coordinator.phase import Phase

JOB = JobEvent("job", 4, 1, 9, 0, 1, {}, last_step=9)
TRAINS = Phase().posted(JOB).posted(StepEvent(3, 0, 1.0, 4, 1.0))


def test_workers_may_come_and_leave_while_it_trains() -> None:
    assert not Phase().posted(WarningEvent("slow")).trains
    assert TRAINS.trains and TRAINS.steps == 3
    for after in (TRAINS.stop(), TRAINS.finish(), TRAINS.fail(CordeeError("it failed"))):
        assert not after.trains


def test_what_ended_it_first_counts() -> None:
    first = WorkersLost("no worker is left")
    assert not TRAINS.fail(None).over
    assert TRAINS.fail(first).fail(CordeeError("later")).fail(None).error is first


def test_a_signal_before_the_training_ends_it_at_once() -> None:
    after, why = Phase().interrupted("", saves=True)
    assert isinstance(after.error, Interrupted) and not why
    late = after.posted_late(StepEvent(1, 0, 1.0, 4, 1.0)).concluded("")  # it had begun, as is known now
    assert str(late.error).startswith("stopped at once, in the first steps")
    assert after.concluded("").error is after.error


def test_the_first_signal_stops_it_after_a_step_and_the_second_at_once() -> None:
    once, why = TRAINS.interrupted("", saves=True)
    assert once.error is None and why == "stopping after this step, with a checkpoint; once more to stop at once"
    twice, why = once.stop().interrupted("", saves=True)
    assert not why and str(twice.error).startswith("stopped at once, without a last checkpoint")


def test_a_scheduler_may_signal_all_hosts() -> None:
    """A signal there counts as one to stop after the step, however many come."""
    after, why = TRAINS.interrupted("b", saves=False)
    assert why == "stopping after this step: host b was asked to stop"
    for host in "cd":
        after, why = after.stop().interrupted(host, saves=False)
        assert after.error is None and not why
    after, _ = after.interrupted("", saves=False)
    assert after.error is None and after.signals == 1
    assert str(after.concluded(" with a checkpoint").error).startswith("stopped with a checkpoint")
