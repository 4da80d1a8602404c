"""Pipeline schedules: tables of actions that are printed, checked, simulated, drawn and executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cordee.core.errors import PlanError
from cordee.core.words import did_you_mean
from cordee.split.schedules.gpipe import gpipe
from cordee.split.schedules.interleaved import interleaved
from cordee.split.schedules.one_f_one_b import one_f_one_b
from cordee.split.schedules.table import Table
from cordee.split.schedules.zero_bubble import zero_bubble

SCHEDULES: Mapping[str, Callable[..., Table]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}
"""By their name in a plan: functions of ranks and micro-batches; `interleaved` also takes `chunks`, stages per rank."""


def table_of(schedule: str, ranks: int, micros: int, chunks: int = 1) -> Table:
    """The table of a schedule by name; `PlanError` for what makes no sense."""
    if schedule not in SCHEDULES:
        hint = did_you_mean(schedule, SCHEDULES, "{!r}")
        raise PlanError(f"schedule {schedule!r} is not known.{hint} Expected one of {', '.join(SCHEDULES)}.")
    for name, value in {"ranks": ranks, "micro-batches": micros, "stages per rank": chunks}.items():
        if value < 1:
            raise PlanError(f"schedule {schedule} was given {value} {name}; expected at least 1.")
    if schedule == "interleaved":
        return interleaved(ranks, micros, chunks)
    if chunks > 1:
        raise PlanError(
            f"schedule {schedule} has one stage per rank, but {chunks} were given; use interleaved for that."
        )
    return SCHEDULES[schedule](ranks, micros)
