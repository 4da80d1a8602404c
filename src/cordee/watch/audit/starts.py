"""What is on record of each start of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cordee.core import events
from cordee.core.errors import WorkersLost
from cordee.core.events import Event, PositionEvent
from cordee.feed.order import Order
from cordee.watch.audit.parts import Parts


@dataclass
class Start:
    """What is on record of one start of a run."""

    job: events.JobEvent | None = None
    plan: str = ""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Step and samples."""
    positions: list[PositionEvent] = field(default_factory=list)
    groups: dict[int, list[int]] = field(default_factory=dict)
    """The workers of each generation that was formed after a loss."""
    lost: set[int] = field(default_factory=set)
    end: events.EndEvent | None = None
    parts: Parts = field(default_factory=Parts)

    @property
    def members(self) -> set[int]:
        """The workers that were there at the end."""
        formed = {one.generation: one.members for one in self.positions} | self.groups
        return set(formed[max(formed)] if formed else ()) - self.lost

    @property
    def told_all(self) -> bool:
        """Whether it could write down its last words: neither its launcher was killed, nor its last workers."""
        return self.end is not None and self.end.code != WorkersLost.code

    def ends(self) -> dict[int, PositionEvent]:
        """The last position of each worker that has come to the end."""
        return {one.worker: one for one in self.positions if one.why == "end" and one.worker in self.members}


def starts_of(record: Iterable[Event]) -> Iterator[Start]:
    """The record, cut where the run was started or resumed."""
    start: Start | None = None
    for event in record:
        if isinstance(event, events.StartEvent):
            if start is not None:
                yield start
            start = Start(plan=event.plan)
        if start is None:
            continue
        match event:
            case events.JobEvent():
                start.job = event
            case events.StepEvent(step=step, samples=samples):
                start.steps.append((step, samples))
            case PositionEvent():
                start.positions.append(event)
            case events.RegroupEvent(generation=generation, workers=workers):
                start.groups[generation] = workers
            case events.FailureEvent(worker=worker):
                start.lost.add(worker)
            case events.EndEvent():
                start.end = event
            case events.WindowEvent() | events.PushesEvent():
                start.parts.add(event)
    if start is not None:
        yield start


def order_of(start: Start) -> Order | None:
    """The order that the job of a start declares; None for a loop of the user's own."""
    if start.job is None or not start.job.order:
        return None
    return Order(**{name: value for name, value in start.job.order.items() if name != "form"})
