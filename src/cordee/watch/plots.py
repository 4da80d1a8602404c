"""What the plots of the report need, made small: numbers to five figures, and not every one of many workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordee.core.times import PARTS
from cordee.watch.summary import Column, Curve, StepParts, Summary, Worker
from cordee.watch.words import parts_of

MOST_SHOWN = 24
"""Workers with lines, bars and lanes of their own in the report; `cordee report --json` has all."""
MOST_METRICS = 12
MARKS = ("failure", "regroup", "resume")


def shown(summary: Summary) -> tuple[Worker, ...]:
    """The workers that bars and tables show: of too many those that were lost, then those that wait least."""
    if len(summary.workers) <= MOST_SHOWN:
        return summary.workers
    return tuple(sorted(_telling(summary)[:MOST_SHOWN], key=lambda one: (one.start, one.worker)))


def shown_numbers(summary: Summary) -> list[int]:
    """The numbers of the workers that lines and lanes show; a number has one line over all starts."""
    numbers = list(dict.fromkeys(one.worker for one in _telling(summary)))
    return sorted(numbers[:MOST_SHOWN])


def spans_of(summary: Summary, number: int) -> list[tuple[float, float]]:
    """When there was a worker with this number."""
    return [span for one in summary.workers if one.worker == number for span in one.spans]


def _telling(summary: Summary) -> list[Worker]:
    """The most telling first."""
    return sorted(summary.workers, key=lambda one: (not one.lost, one.share("waiting"), one.worker))


def metric_names(summary: Summary) -> list[str]:
    """The validation metrics with a plot of their own."""
    return [name for name in summary.metrics.values if name != "loss"][:MOST_METRICS]


def plot_data(summary: Summary) -> dict[str, Any]:
    """Everything that is drawn, for JSON."""
    numbers = [str(number) for number in shown_numbers(summary)]
    known = summary.metrics.values
    metrics = {name: known[name] for name in ("loss", *metric_names(summary)) if name in known}
    return {
        "losses": _curve(summary.losses),
        "pace": _curve(summary.pace),
        "metrics": {**_curve(summary.metrics), "values": _columns(metrics)},
        "split": {
            **_places(summary.split),
            "count": summary.split.count,
            "parts": parts_of(summary.workers),
            "workers": {one: _columns(summary.split.workers[one]) for one in numbers if one in summary.split.workers},
            "all": _columns(_of_all(summary.split)),
            "others": sum(one not in numbers for one in summary.split.workers),
        },
        "usage": {one: _curve(summary.usage[one]) for one in numbers if one in summary.usage},
        "spans": {one: spans_of(summary, int(one)) for one in numbers if one in summary.usage},
        "latency": {
            "p99": summary.latency.p99,
            "edges": _short(summary.latency.edges),
            "counts": summary.latency.counts,
        },
        "marks": [
            {"kind": one.kind, "step": one.step, "seconds": round(one.seconds, 3)}
            for one in summary.incidents
            if one.kind in MARKS
        ],
    }


def _of_all(parts: StepParts) -> dict[str, Column]:
    """Over all workers, also those that are not shown: the mean of each part, and the samples of a step."""
    made: dict[str, Column] = {}
    for name in (*PARTS, "samples"):
        rows = zip(*(columns[name] for columns in parts.workers.values()), strict=True)
        known = [[value for value in row if value is not None] for row in rows]
        made[name] = tuple(sum(row) if name == "samples" else sum(row) / len(row) if row else None for row in known)
    return made


def _curve(curve: Curve) -> dict[str, Any]:
    return {**_places(curve), "values": _columns(curve.values)}


def _places(rows: Curve | StepParts) -> dict[str, Any]:
    """Where rows stand on both axes, and which were done again."""
    seconds = [round(moment, 3) for moment in rows.seconds]
    return {"step": rows.step, "seconds": seconds, "redone": list(map(int, rows.redone))}


def _columns(columns: Mapping[str, Column]) -> dict[str, list[float | None]]:
    return {name: _short(column) for name, column in columns.items()}


def _short(column: Column) -> list[float | None]:
    return [None if value is None else float(f"{value:.5g}") for value in column]
