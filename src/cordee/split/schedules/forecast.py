"""A forecast of a pipeline's step as an event, which the report shows beside what is measured."""

from __future__ import annotations

from cordee.core.events import PipelineEvent
from cordee.split.schedules.simulate import Timeline


def forecast(schedule: str, timeline: Timeline, step: int = 0) -> PipelineEvent:
    """The event of a schedule that holds from `step` on; the worker that speaks for all posts it."""
    return PipelineEvent(
        schedule=schedule,
        table=str(timeline.table),
        stage_ms=[(one.of("F"), one.of("B"), one.of("I"), one.of("W")) for one in timeline.costs.stages],
        forecast=[[(span.begin, span.end) for span in row] for row in timeline.spans],
        forecast_ms=timeline.step_ms,
        bubble=list(timeline.bubble),
        held=list(timeline.held),
        step=step,
    )
