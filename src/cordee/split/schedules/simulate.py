"""When each action of a table begins and ends, by what actions and messages cost: the forecast of a pipeline's step.

A rank executes its row in order, as soon as what the next action needs is there. Sending does not hold up the sender.
Messages over one boundary in one direction follow each other; different boundaries do not slow each other down, though
they may share a network card: then the forecast is too good.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from cordee.split.schedules.check import check, in_order
from cordee.split.schedules.costs import Costs
from cordee.split.schedules.draw import Span, draw
from cordee.split.schedules.table import Action, Table


@dataclass(frozen=True)
class Timeline:
    """One step: when each rank executes what."""

    table: Table
    costs: Costs
    spans: tuple[tuple[Span, ...], ...]
    """For each rank, in order: action, begin and end in milliseconds."""

    @cached_property
    def step_ms(self) -> float:
        """From the first action to the end of the last."""
        return max(row[-1].end for row in self.spans)

    @property
    def bubble(self) -> tuple[float, ...]:
        """The part of the step in which each rank computes nothing, from 0 to 1."""
        busy = [sum(span.end - span.begin for span in row) for row in self.spans]
        return tuple(max(0.0, 1 - one / self.step_ms) if self.step_ms else 0.0 for one in busy)

    @property
    def held(self) -> tuple[int, ...]:
        """The most micro-batches whose activations each rank holds at once, counted once for each of its stages."""
        return tuple(_peak(row, [1] * self.table.stages) for row in self.table.rows)

    @property
    def held_bytes(self) -> tuple[int, ...]:
        """The most bytes of activations that each rank holds at once."""
        sizes = [stage.held_bytes for stage in self.costs.stages]
        return tuple(_peak(row, sizes) for row in self.table.rows)

    def __str__(self) -> str:
        """Ranks down, time across."""
        return draw(self.spans)


def simulate(table: Table, costs: Costs) -> Timeline:
    """The step of `table` by these costs; a table that cannot run is a `PlanError`."""
    check(table)
    costs.check(table)
    free = [0.0] * table.ranks
    ends: dict[Action, float] = {}
    arrivals: dict[Action, float] = {}
    """When the message for an action is there."""
    links: dict[tuple[int, bool], float] = {}
    """When each boundary can take the next message, by the stage that sends over it and whether forwards."""
    rows: list[list[Span]] = [[] for _ in range(table.ranks)]
    for action in in_order(table):
        rank = table.rank_of(action.stage)
        own = (ends[one] for one in table.needs(action) if table.rank_of(one.stage) == rank)
        begin = max(free[rank], arrivals.get(action, 0.0), *own, 0.0)
        free[rank] = ends[action] = end = begin + costs.action_ms(action, rank)
        rows[rank].append(Span(action, begin, end))
        if (target := table.goes_to(action)) is not None:
            boundary, link = costs.boundary(action), (action.stage, action.kind == "F")
            links[link] = max(end, links.get(link, 0.0)) + boundary.sending_ms
            arrivals[target] = links[link] + boundary.latency_ms
    return Timeline(table, costs, tuple(map(tuple, rows)))


def _peak(row: tuple[Action, ...], sizes: list[int]) -> int:
    """The most that is held: from the forward of a stage's micro-batch to the end of its whole backward."""
    signs = {"F": 1, "B": -1, "I": 0, "W": -1}
    return max(accumulate(signs[one.kind] * sizes[one.stage] for one in row), default=0)
