"""The pipeline of a run from its events: how a step was forecast, and how it went, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordee.core.events import PipelineEvent, PipelineStepEvent, StartEvent
from cordee.core.words import plural
from cordee.watch.summary import Lane, Pipeline, PipelineStep
from cordee.watch.words import milliseconds, percent

MOST_OPEN = 8
"""Steps of a replica that may wait for the events of other ranks."""
MOST_REPLICAS = 4
"""Replicas whose steps are kept."""
MOST_BOXES = 6000
"""Actions that are drawn of a step, as long as that is at least one rank."""
KINDS = {"F": "forward", "B": "backward", "I": "gradient of inputs", "W": "gradient of weights"}


class Pipelined:
    """Takes the events of a run, one after the other."""

    def __init__(self) -> None:
        """No pipeline yet."""
        self._plan: PipelineEvent | None = None
        self._names: list[list[str]] = []
        """The actions of each rank."""
        self._open: dict[int, dict[int, dict[int, PipelineStepEvent]]] = {}
        """By replica and step, what each rank said."""
        self._last: dict[int, PipelineStep] = {}

    def on_start(self, event: StartEvent, seconds: float) -> None:
        """Other processes, and maybe another plan."""
        self._plan, self._names = None, []
        self._open.clear()
        self._last.clear()

    def on_pipeline(self, event: PipelineEvent, seconds: float) -> None:
        """Another table: steps of the former one cannot be compared with it."""
        self._plan, self._names = event, [line.split() for line in event.table.splitlines()]
        self._open.clear()
        self._last.clear()

    def on_pipelinestep(self, event: PipelineStepEvent, seconds: float) -> None:
        """A step is known when all ranks of a replica have told of it."""
        ranks = len(self._names)
        if event.rank >= ranks or len(event.spans) != len(self._names[event.rank]) or event.replica >= MOST_REPLICAS:
            return  # of another table: it was on its way when this one began to hold
        steps = self._open.setdefault(event.replica, {})
        steps.setdefault(event.step, {})[event.rank] = event
        if len(steps[event.step]) == ranks:
            self._last[event.replica] = _together(steps[event.step], self._names)
            self._open[event.replica] = {step: said for step, said in steps.items() if step > event.step}
        elif len(steps) > MOST_OPEN:
            del steps[min(steps)]

    def summary(self) -> Pipeline | None:
        """All of it; None without a pipeline."""
        if self._plan is None:
            return None
        plan, actions = self._plan, [name for names in self._names for name in names]
        numbers = [name[1:].partition(".") for name in actions]
        return Pipeline(
            schedule=plan.schedule,
            table=plan.table,
            micros=len({micro for _, _, micro in numbers}),
            stages=len({stage for stage, _, _ in numbers}),
            forecast=tuple(map(_lane, self._names, plan.forecast)),
            forecast_ms=plan.forecast_ms,
            bubble=tuple(plan.bubble),
            held=tuple(plan.held),
            measured=tuple(self._last[replica] for replica in sorted(self._last)),
        )


def _lane(names: Sequence[str], spans: Sequence[tuple[float, float]], shift: float = 0.0) -> Lane:
    return tuple((name, begin + shift, end + shift) for name, (begin, end) in zip(names, spans, strict=True))


def _together(said: dict[int, PipelineStepEvent], names: Sequence[Sequence[str]]) -> PipelineStep:
    """What the ranks said of a step, each on the launcher's clock, from the first action on."""
    ordered = [said[rank] for rank in range(len(names))]
    first = min(1e3 * one.began + begin for one in ordered for begin, _ in one.spans[:1])
    lanes = tuple(_lane(names[one.rank], one.spans, 1e3 * one.began - first) for one in ordered)
    whole = max(end for lane in lanes for _, _, end in lane)
    busy = [sum(end - begin for _, begin, end in lane) for lane in lanes]
    return PipelineStep(
        replica=ordered[0].replica,
        step=ordered[0].step,
        workers=tuple(one.worker for one in ordered),
        lanes=lanes,
        ms=whole,
        bubble=tuple(max(0.0, 1 - one / whole) if whole > 0 else 0.0 for one in busy),
    )


# ------------------------------------------------------------- what is drawn, and said


class Box(NamedTuple):
    """An action as it is drawn; places are in percent of the width."""

    kind: str
    name: str
    micro: str
    left: float
    width: float
    is_odd: bool
    """Whether it belongs to the second, fourth, ... stage of its rank."""
    says: str


def boxes(lane: Lane, whole_ms: float, ranks: int) -> list[Box]:
    """The actions of a rank in a drawing that is `whole_ms` wide."""
    drawn = []
    for name, begin, end in lane:
        stage, _, micro = name[1:].partition(".")
        left, width = (100 * one / whole_ms if whole_ms > 0 else 0.0 for one in (begin, end - begin))
        is_odd = stage.isdecimal() and int(stage) // ranks % 2 == 1
        says = f"{name}, {KINDS.get(name[:1], '')}: {milliseconds(max(0.0, begin))} to {milliseconds(max(0.0, end))}"
        drawn.append(Box(name[:1] if name[:1] in KINDS else "", name, micro, left, width, is_odd, says))
    return drawn


def drawn_ranks(pipeline: Pipeline) -> int:
    """How many ranks are drawn: all, unless that were too many boxes."""
    longest = max(map(len, pipeline.forecast), default=1)
    return min(len(pipeline.forecast), max(1, MOST_BOXES // max(1, longest)))


def whole_ms(pipeline: Pipeline) -> float:
    """The width of all drawings: forecast and measurement have one scale."""
    return max(pipeline.forecast_ms, *(one.ms for one in pipeline.measured), 0.0)


def kinds_of(pipeline: Pipeline) -> dict[str, str]:
    """The kinds of actions that occur, with their names."""
    found = {name[:1] for lane in pipeline.forecast for name, _, _ in lane}
    return {kind: name for kind, name in KINDS.items() if kind in found}


def in_words(pipeline: Pipeline) -> str:
    """The schedule, what was forecast of a step, and what was measured."""
    ranks = len(pipeline.forecast)
    micros = f"{pipeline.micros:,} micro-batch{'' if pipeline.micros == 1 else 'es'} per step"
    said = [f"Schedule {pipeline.schedule}: {plural(ranks, 'rank')}, {plural(pipeline.stages, 'stage')}, {micros}."]
    said.append(f"Forecast: {milliseconds(pipeline.forecast_ms)}, of which ranks are idle {_mean(pipeline.bubble)}.")
    for one in pipeline.measured[:1]:
        said.append(f"Measured in step {one.step:,}: {milliseconds(one.ms)}, idle {_mean(one.bubble)}.")
    return " ".join(said)


def _mean(shares: Sequence[float]) -> str:
    return percent(sum(shares) / max(1, len(shares)))


WORDS = {
    "boxes": boxes,
    "drawn_ranks": drawn_ranks,
    "whole_ms": whole_ms,
    "kinds_of": kinds_of,
    "pipeline_words": in_words,
}
"""What the template uses."""
