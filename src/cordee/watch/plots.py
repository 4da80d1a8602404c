"""What the plots of the report need, made small: numbers to five figures, and not every one of many workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    split, known = summary.split, summary.metrics.values
    metrics = {name: known[name] for name in ("loss", *metric_names(summary)) if name in known}
    data = {
        "losses": summary.losses,
        "pace": summary.pace,
        "metrics": replace(summary.metrics, values=metrics),
        "split": {
            **vars(split),
            "parts": parts_of(summary.workers),
            "workers": {number: split.workers[number] for number in numbers if number in split.workers},
            "all": _of_all(split),
            "others": len(split.workers.keys() - set(numbers)),
        },
        "usage": {number: summary.usage[number] for number in numbers if number in summary.usage},
        "spans": {number: spans_of(summary, int(number)) for number in numbers if number in summary.usage},
        "latency": {name: getattr(summary.latency, name) for name in ("p99", "edges", "counts")},
        "marks": [
            {name: getattr(incident, name) for name in ("kind", "step", "seconds")}
            for incident in summary.incidents
            if incident.kind in MARKS
        ],
    }
    return {name: _compact(part) for name, part in data.items()}


def _of_all(parts: StepParts) -> dict[str, Column]:
    """Over all workers, also those that are not shown: the mean of each part, and the samples of a step."""
    columns: dict[str, Column] = {}
    for name in (*PARTS, "samples"):
        rows = zip(*(worker[name] for worker in parts.workers.values()), strict=True)
        known = [[value for value in row if value is not None] for row in rows]
        columns[name] = tuple(sum(row) if name == "samples" else sum(row) / len(row) if row else None for row in known)
    return columns


def _compact(value: Any) -> Any:
    """A value for JSON in few characters: numbers to five figures, and to milliseconds where they are large."""
    if isinstance(value, float):
        return round(value, 3) if abs(value) >= 100 else float(f"{value:.5g}")
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_compact(one) for one in value]
    if isinstance(value, Curve):
        value = vars(value)
    return {name: _compact(one) for name, one in value.items()} if isinstance(value, Mapping) else value
