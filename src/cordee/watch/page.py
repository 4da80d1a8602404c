"""Pages of HTML that need nothing else: no network, no server, no other file.

The templates lie in `assets`. Jinja escapes all text of users (names, hosts, reasons, warnings), and the page's own
policy lets no script run but the two that it was written with: even a mistake in a template could not run what a name
contains.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError
from markupsafe import Markup

from cordee.core.times import COSTS, PARTS
from cordee.watch import byte_words, pipeline, words
from cordee.watch.summary import Column, Curve, Decision, StepParts, Summary, Worker
from cordee.watch.verdict import verdict

MOST_SHOWN = 24
"""Workers with lines, bars and lanes of their own in the report; `cordee report --json` has all."""
MOST_METRICS = 12
MOST_TICKS = 100
MARKS = ("failure", "regroup", "resume", "decision")


def fill(template: str, *, data: Mapping[str, Any], drawn: bool, **values: Any) -> str:
    """A page from a template of `assets`; scripts are in it if something is `drawn` from its `data`."""
    scripts = [asset("uplot.min.js"), asset("report.js")] if drawn else []
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    try:
        return (
            _environment()
            .get_template(template)
            .render(
                policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}",
                style=Markup(f"{asset('uplot.min.css')}\n{asset('report.css')}"),
                scripts=[Markup(script) for script in scripts],
                licence=Markup(asset("uplot-LICENSE.txt")),
                data=data,
                **values,
            )
        )
    except TemplateError as error:  # what wrong types of a damaged record lead to in a template
        raise ValueError(str(error)) from error


@cache
def asset(name: str) -> str:
    """A file that comes with this folder."""
    return (files("cordee.watch") / "assets" / name).read_text(encoding="utf-8").strip()


@cache
def _environment() -> Environment:
    loader = PackageLoader("cordee.watch", "assets")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals.update(
        {**vars(words), **vars(byte_words), **pipeline.WORDS}, verdict=verdict, date=_date, write=_written
    )
    return environment


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


# ------------------------------------------------------------- the report of a run


def render(summary: Summary, now: float) -> str:
    """The report of a run."""
    workers, numbers = shown(summary)
    metrics = [name for name in summary.metrics.values if name != "loss"][:MOST_METRICS]
    lanes = {
        number: [span for one in summary.workers if one.worker == number for span in one.spans] for number in numbers
    }
    return fill(
        "report.html",
        data=_plot_data(summary, lanes, metrics),
        drawn=bool(summary.losses.step),
        title=summary.name,
        summary=summary,
        now=now,
        metrics=metrics,
        most_metrics=MOST_METRICS,
        most_fed=MOST_SHOWN + 1,
        whole=_whole_run(summary),
        shown=workers,
        lanes=lanes,
        few=lambda moments: moments[:: max(1, -(-len(moments) // MOST_TICKS))],
        worker_columns=words.worker_columns(summary),
        byte_columns=byte_words.byte_columns(summary),
    )


def shown(summary: Summary) -> tuple[list[Worker], list[int]]:
    """The workers of bars and tables, and the numbers of those of lines and lanes, which go over all starts.

    Of too many they are those that were lost, then those that wait least.
    """
    telling = sorted(summary.workers, key=lambda one: (not one.lost, one.share("waiting"), one.worker))
    numbers = list(dict.fromkeys(one.worker for one in telling))
    return sorted(telling[:MOST_SHOWN], key=lambda one: (one.start, one.worker)), sorted(numbers[:MOST_SHOWN])


def _whole_run(summary: Summary) -> dict[str, float]:
    """Seconds of the run by what they were spent on."""
    steps_s: dict[int, float] = {}
    for worker in summary.workers:
        steps_s[worker.start] = max(steps_s.get(worker.start, 0.0), worker.measured_s)
    whole = {"start": summary.other_s["start"], "steps": sum(steps_s.values()), **summary.other_s}
    whole["other"] = max(0.0, summary.running_s - sum(whole.values()))
    return {part: seconds for part, seconds in whole.items() if seconds}


def _plot_data(
    summary: Summary, lanes: Mapping[int, list[tuple[float, float]]], metrics: Sequence[str]
) -> dict[str, Any]:
    """Everything that is drawn, for JSON: when the workers of the `lanes` were there, and these metrics."""
    spans = {str(number): one for number, one in lanes.items()}
    split, known = summary.split, summary.metrics.values
    data = {
        "losses": summary.losses,
        "pace": summary.pace,
        "metrics": replace(summary.metrics, values={one: known[one] for one in ("loss", *metrics) if one in known}),
        "split": {
            **vars(split),
            "parts": words.parts_of(summary.workers),
            "workers": {number: _timed(split.workers[number]) for number in spans if number in split.workers},
            "all": _of_all(split),
            "others": len(split.workers.keys() - spans.keys()),
        },
        "staleness": summary.traffic.staleness,
        "decisions": _as_columns(summary.traffic.decisions),
        "usage": {number: summary.usage[number] for number in spans if number in summary.usage},
        "spans": {number: spans[number] for number in spans if number in summary.usage},
        "latency": {name: getattr(summary.latency, name) for name in ("p99", "edges", "counts")},
        "marks": [
            {name: getattr(incident, name) for name in ("kind", "step", "seconds")}
            for incident in summary.incidents
            if incident.kind in MARKS
        ],
    }
    return {name: _compact(part) for name, part in data.items()}


def _timed(columns: Mapping[str, Column]) -> dict[str, Column]:
    """What is drawn of a worker by itself."""
    return {name: column for name, column in columns.items() if name not in COSTS}


def _as_columns(decisions: Sequence[Decision]) -> dict[str, list[Any]]:
    """Decisions as a curve."""
    names = ("step", "seconds", "link_mbit", "forecast_ms", "measured_ms")
    return {"redone": [False] * len(decisions), **{name: [getattr(one, name) for one in decisions] for name in names}}


def _of_all(parts: StepParts) -> dict[str, Column]:
    """Over all workers, also those that are not shown: the mean of each column, and all samples of a step."""
    columns: dict[str, Column] = {}
    for name in (*PARTS, "samples", *COSTS):
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


def _written(value: object) -> str:
    """A value of `run.json` as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_written(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_written, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
