"""The audit: what a run's record proves of its samples, steps and states, by recomputing it from the order of the data.

A worker's position has a digest over all its steps, chained in order: what reached the workers in each step, and
where in the global batch. It is the one recomputed here only if each step was entered once, with each sample once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cordee.core.events import Event
from cordee.core.words import plural
from cordee.feed.order import Order
from cordee.watch.audit.findings import Finding, findings_of
from cordee.watch.audit.starts import Start, order_of, starts_of


@dataclass(frozen=True)
class Audit:
    """What a record proves: nothing is wrong where there are no findings."""

    findings: tuple[Finding, ...]
    proven: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """What would be needed for the whole proof, and is not on record."""
    unaudited: tuple[str, ...] = ()
    """What no record of such a run can prove."""


def audit(record: Iterable[Event]) -> Audit:
    """What the record of a run, all its events in order, proves."""
    starts = list(starts_of(record))
    if not starts:
        return Audit((), missing=("a start of the run",))
    last = starts[-1]
    order = order_of(last)
    findings = [finding for start in starts for finding in findings_of(start, order if start.job else None)]
    missing = tuple(_missing(last))
    own = () if order else ("the order of the data and the last parameters, which belong to a loop of the user's own",)
    proven = () if findings or missing else tuple(_proven(last, order))
    return Audit(tuple(sorted(findings, key=lambda one: one.step)), proven, missing, own)


def _missing(start: Start) -> Iterator[str]:
    """What the last start would have to have left."""
    if start.job is not None and not start.job.order:
        yield "the order of its data: the record is of a former version"
    elif start.end is None:
        yield "its end: the run is going on, or its launcher was killed. Resume it, and audit it when it has ended"
    elif not (start.ends() and start.told_all):
        yield f"a worker's position at the end: the run ended with exit code {start.end.code}, before it was complete"


def _proven(start: Start, order: Order | None) -> Iterator[str]:
    ends = start.ends()
    one = ends[min(ends)]
    who = plural(len(ends), "worker")
    if order is None:
        yield f"{plural(one.samples, 'sample')} in {plural(one.step, 'step')}, the same in the same order on {who}"
        return
    yield f"{plural(one.step, 'step')}, each applied once and in order on {who}"
    once = "each place in the endless data once" if order.steps_per_epoch else "each sample once per epoch"
    yield f"{plural(one.samples, 'sample')} in {plural(-(-one.step // order.steps), 'epoch')}, {once}"
    if start.parts.items:
        yield f"{plural(start.parts.items, 'part')} of steps, each computed once"
    copies = len(ends) // len({each.part for each in ends.values()})
    if copies > 1:
        yield f"the same parameters, bit by bit, on {plural(copies, 'replica')}"
    else:
        yield "each parameter is on one worker: there is no other one to be equal to"
