"""What the plots of the report need, made small: numbers to five figures, and not every one of many workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """The numbers of the workers that lines and lanes show; whoever had a number in a later start goes on with it."""
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
    metrics = {
        name: summary.metrics.values[name]
        for name in ("loss", *metric_names(summary))
        if name in summary.metrics.values
    }
    return {
        "losses": _curve(summary.losses),
        "pace": _curve(summary.pace),
        "metrics": {**_curve(summary.metrics), "values": _columns(metrics)},
        "epochs": {"step": summary.metrics.step, "seconds": _seconds(summary.metrics.seconds)},
        "split": {
            "step": summary.split.step,
            "seconds": _seconds(summary.split.seconds),
            "redone": summary.split.redone,
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


def _of_all(split: StepParts) -> dict[str, Column]:
    """Over all workers, those that are not shown included: the mean of each part, and the samples of a step."""
    means = {name: [_known(cells) for cells in _rows(split, name)] for name in PARTS}
    made: dict[str, Column] = {
        name: tuple(sum(row) / len(row) if row else None for row in rows) for name, rows in means.items()
    }
    return {**made, "samples": tuple(sum(_known(cells)) for cells in _rows(split, "samples"))}


def _rows(split: StepParts, name: str) -> Iterable[tuple[float | None, ...]]:
    """What the workers have of one name, row by row."""
    return zip(*(columns[name] for columns in split.workers.values()), strict=True)


def _known(cells: tuple[float | None, ...]) -> list[float]:
    return [value for value in cells if value is not None]


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "step": curve.step,
        "seconds": _seconds(curve.seconds),
        "redone": curve.redone,
        "values": _columns(curve.values),
    }


def _columns(columns: Mapping[str, Column]) -> dict[str, list[float | None]]:
    return {name: _short(column) for name, column in columns.items()}


def _short(column: Column) -> list[float | None]:
    return [None if value is None else float(f"{value:.5g}") for value in column]


def _seconds(moments: tuple[float, ...]) -> list[float]:
    return [round(moment, 3) for moment in moments]
