"""What becomes of a run that has lost its last whole replica: it ends, or continues by itself. Pure decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cordee.core.plan import Plan
from cordee.core.words import plural
from cordee.group.messages import LEAVES, Again
from cordee.runtime.coordinator.state import Places

LEFT = "it has left"
"""Of a worker that was not lost."""
MOST_CONTINUED = 20
"""So many times a run continues by itself."""


@dataclass(frozen=True)
class Course:
    """How a run has continued by itself so far."""

    times: int = 0
    reached: int = 0
    """The last step that was committed before it did so last."""

    def after(self, steps: int) -> Course:
        """It does so once more, after so many steps."""
        return Course(self.times + 1, max(self.reached, steps))


@dataclass(frozen=True)
class Left:
    """What there is when a run has lost its last whole replica."""

    began: tuple[int, ...]
    """Workers with which each host has begun, by its place in the order of hosts."""
    full: tuple[int, ...]
    """Workers that each host had or was to have, before some were lost: with those that have come since, not left."""
    able: tuple[int, ...]
    """Workers of each host that were not lost, or gave way because others were."""
    hosts: frozenset[int]
    """Hosts whose launcher is here; the coordinator's own, number 0, always is."""
    steps: int
    """Steps that are committed."""
    saved: bool
    """Whether a state of the run is anywhere, on a disk or in memory."""

    @classmethod
    def of(cls, places: Places, lost: Mapping[int, str], hosts: Collection[int], *, steps: int, saved: bool) -> Left:
        """By the places of all workers, those that were started in the place of others too, and why some are lost."""
        seats, instead = list(places.seats.values()), set(places.replaces.values())
        count = max((seat.world.nodes for seat in seats), default=1)
        began = [seat for seat in seats if not seat.joins]
        full = [seat for seat in seats if seat.worker not in instead and lost.get(seat.worker) != LEFT]
        able = [seat for seat in seats if lost.get(seat.worker, LEAVES) == LEAVES]
        counts = (Counter(seat.world.node for seat in some) for some in (began, full, able))
        began_of, full_of, able_of = (tuple(one[node] for node in range(count)) for one in counts)
        return cls(began_of, full_of, able_of, frozenset(hosts), steps, saved)


def decide(plan: Plan, course: Course, left: Left) -> Again | str:
    """How the run continues; or why it does not, in words, which are empty where it was not asked to."""
    if plan.recover == "ask":
        return ""
    if not left.saved:
        return "no state of it was saved yet"
    if left.steps <= course.reached:  # what has ended it would end it again
        return f"no step was done beyond step {course.reached}, where it was lost before"
    if course.times >= MOST_CONTINUED:
        return f"it has done so {plural(course.times, 'time')} already"
    wanted = left.full if plan.recover == "full" else left.able
    workers = [count if host in left.hosts else 0 for host, count in enumerate(wanted)]
    if not sum(workers):
        return "no worker is left, and recover=fewer starts none in their place; recover=full does"
    if left.began[0] and not workers[0]:
        return "no worker is left on the host that coordinates"
    fewer = plan.on_fewer(sum(workers))
    if reasons := fewer.refusals(sum(workers)):
        return f"plan {fewer} cannot run on {plural(sum(workers), 'worker')}: {' '.join(reasons)}"
    nodes = sum(count > 0 or not left.began[host] for host, count in enumerate(workers) if host in left.hosts)
    return Again(str(fewer), workers, nodes)
