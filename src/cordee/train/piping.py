"""What is told of a pipeline: what its table is forecast to take, by costs measured in this run, and how steps went."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict

import torch

from cordee.core.events import PipelineStepEvent
from cordee.group.team import Team
from cordee.split.execute import Executed
from cordee.split.pipeline import Pipeline
from cordee.split.schedules.costs import Boundary, Costs, StageCosts
from cordee.split.schedules.forecast import forecast
from cordee.split.schedules.simulate import simulate
from cordee.split.seam import Split
from cordee.train.reporter import Reporter

FORECASTS = (3, 24)
"""After so many steps of a start a forecast is made: an early one, and one from more steps."""
FIRST = 48
"""So many steps are told of, and from then on one in `EVERY`."""
EVERY = 50
KINDS = "FBIW"


class Piping:
    """Follows the steps of a pipeline; without one, nothing."""

    def __init__(self, team: Team, split: Split, reporter: Reporter) -> None:
        """No step was seen."""
        self._team, self._reporter = team, reporter
        self._pipeline = split if isinstance(split, Pipeline) else None
        self._steps = 0
        self._spent: dict[tuple[str, int], list[float]] = defaultdict(list)
        """Milliseconds of each action, by kind and stage."""
        self._told = ""
        """The table of the last forecast."""

    def see(self, number: int) -> None:
        """A step was committed, the one with this number; every worker calls this."""
        if self._pipeline is None or (executed := self._pipeline.executed) is None:
            return
        self._steps += 1
        row = executed.table.rows[self._team.stages.rank]
        if self._steps > 1:  # the first one warms up
            for action, (begin, end) in zip(row, executed.spans, strict=True):
                self._spent[action.kind, action.stage].append(end - begin)
        if self._steps in FORECASTS:
            self._forecast(self._pipeline, executed, number)
        elif self._told == str(executed.table) and (self._steps <= FIRST or self._steps % EVERY == 0):
            self._tell(executed, number)

    def _tell(self, executed: Executed, number: int) -> None:
        team = self._team
        if team.slices.rank == 0 and team.lines.shards.rank == 0:
            began = team.membership.clock() - (time.perf_counter() - executed.began)
            spans = [(round(begin, 4), round(end, 4)) for begin, end in executed.spans]
            team.channel.post(
                PipelineStepEvent(team.membership.worker, team.replica, team.stages.rank, number, began, spans)
            )

    def _forecast(self, pipeline: Pipeline, executed: Executed, number: int) -> None:
        """Simulate the table by the medians of all stages; the worker that speaks tells of it."""
        message_ms = pipeline.time_message()
        stages = range(self._team.stages.rank, executed.table.stages, self._team.stages.size)
        own = [[self._median(kind, stage) for kind in KINDS] for stage in stages]
        sides = self._team.stages.gather(torch.tensor([[*row, message_ms] for row in own], dtype=torch.float64)).wait()
        self._spent.clear()
        if sides is None:  # a worker was lost, which the next step notices
            return
        rows = [sides[stage % len(sides)][stage // len(sides)].tolist() for stage in range(executed.table.stages)]
        costs = Costs(
            tuple(StageCosts(f, i or b / 2, w or b / 2, b or None) for f, b, i, w, _ in rows),
            tuple(Boundary(latency_ms=row[-1]) for row in rows[:-1]),
        )
        self._told = str(executed.table)
        self._reporter.tell(forecast(pipeline.schedule, simulate(executed.table, costs), number))
        self._team.channel.send()  # it should be known before steps that it is compared with

    def _median(self, kind: str, stage: int) -> float:
        return statistics.median(self._spent.get((kind, stage)) or [0.0])
