"""What is done about a worker that makes the others wait, or what the user can do: a sentence for the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cordee.core.events import WorkerEvent
from cordee.core.plan import Plan
from cordee.core.words import plural
from cordee.runtime.coordinator.straggling import Cause


def remedy(cause: Cause, plan: Plan, workers: int, here: Sequence[WorkerEvent] = ()) -> str:
    """For a run of so many workers, of which those `here` are on the host in question."""
    cores = _cores(here)
    if cause == "compute" or (cause == "paused" and cores):
        return _share(plan, workers) + cores
    if cause == "data":
        return "nothing was done: give that host a faster source, or a cache near to it"
    if cause == "callbacks":
        return "nothing was done: leave out of its callbacks what is not needed after every step"
    if cause == "paused":
        return (
            "nothing was done: find out what stops it (a signal, a frozen container, a suspended or overloaded machine)"
        )
    if plan.sync == "auto":
        return "sync=auto chooses what is sent over it"
    return "nothing was done: with sync=auto in the plan, less is sent over it"


def _share(plan: Plan, workers: int) -> str:
    """What shares can do about a slow worker."""
    if plan.share == "balanced":
        return "share=balanced gives it fewer samples"
    if replace(plan, share="balanced", proportions=()).refusals(workers):
        return "nothing was done: find out what else runs there"
    return "nothing was done: with share=balanced in the plan, it gets fewer samples"


def _cores(here: Sequence[WorkerEvent]) -> str:
    """How few cores a host allows its workers, by affinity and quota."""
    cores = max((one.cores or 0.0 for one in here if one.device == "cpu"), default=0.0)
    if not 0 < cores < len(here):
        return ""
    return f"; its host allows {plural(len(here), 'worker')} {plural(round(cores, 2), 'core')}"
