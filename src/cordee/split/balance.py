"""Consecutive units over stages, so that the slowest stage is as fast as it can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from cordee.core.errors import PlanError
from cordee.core.words import plural

STEP = 1.25
"""Speeds are told in steps of this ratio. Measured ones of equal workers differ by less, also on busy cores, mostly."""


def speeds_of(times: Sequence[float]) -> list[float]:
    """How fast devices are beside the fastest, by the times that the same work took on each; in steps of a quarter."""
    steps = [math.log(time / min(times), STEP) for time in times]
    return [STEP ** -(round(one) if one >= 1 else 0) for one in steps]


def balance(costs: Sequence[float], stages: int, speeds: Sequence[float] | None = None) -> tuple[int, ...]:
    """How many consecutive units each stage gets: the slowest stage is as fast as possible, then all are alike.

    `costs` are those of the units; `speeds` are those of the stages' devices, of which only the ratio counts.
    """
    if not 1 <= stages <= len(costs):
        raise PlanError(
            f"{plural(stages, 'stage')} for {plural(len(costs), 'unit')}: expected 1 to {len(costs)} stages"
        )
    speeds = [1.0] * stages if speeds is None else list(speeds)
    if len(speeds) != stages or min(speeds) <= 0:
        raise PlanError(f"speeds={speeds}: expected {plural(stages, 'positive number')}, one for each stage")
    if min(costs) < 0:
        raise PlanError(f"costs={list(costs)}: expected no negative number")
    before = [0.0, *accumulate(costs)]

    def time(stage: int, first: int, end: int) -> float:
        return (before[end] - before[first]) / speeds[stage]

    slowest, _ = _best(len(costs), stages, time, max)
    slowest *= 1 + 1e-12  # the same sum, added up in another order

    def squared(stage: int, first: int, end: int) -> float:
        taken = time(stage, first, end)
        return taken * taken if taken <= slowest else float("inf")

    _, ends = _best(len(costs), stages, squared, lambda one, other: one + other)
    return tuple(end - start for start, end in zip((0, *ends), ends, strict=False))


def _best(
    units: int, stages: int, price: Callable[[int, int, int], float], join: Callable[[float, float], float]
) -> tuple[float, tuple[int, ...]]:
    """The least joined price of all stages, and where each of them ends; units² × stages."""
    table: list[tuple[float, tuple[int, ...]]] = [(price(0, 0, end), (end,)) for end in range(units + 1)]
    for stage in range(1, stages):
        table = [
            min(
                (
                    (join(table[first][0], price(stage, first, end)), (*table[first][1], end))
                    for first in range(stage, end)
                ),
                default=(float("inf"), ()),
            )
            for end in range(units + 1)
        ]
    return table[units]
