"""Pages of HTML that need nothing else: no network, no server, no other file.

The templates lie in `assets`. Jinja escapes all text of users (names, hosts, reasons, warnings), and the page's own
policy lets no script run but the two that it was written with: even a mistake in a template could not run what a name
contains.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError
from markupsafe import Markup

from cordee.watch import words
from cordee.watch.plots import MOST_METRICS, metric_names, plot_data, shown, shown_numbers, spans_of
from cordee.watch.summary import Summary

MOST_TICKS = 100


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
    environment.globals.update(vars(words), date=_date, write=_written)
    return environment


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


# ------------------------------------------------------------- the report of a run


def render(summary: Summary, now: float) -> str:
    """The report of a run."""
    return fill(
        "report.html",
        data=plot_data(summary),
        drawn=bool(summary.losses.step),
        title=summary.name,
        summary=summary,
        now=now,
        metrics=metric_names(summary),
        most_metrics=MOST_METRICS,
        whole=_whole_run(summary),
        shown=shown(summary),
        lanes={number: spans_of(summary, number) for number in shown_numbers(summary)},
        few=lambda moments: moments[:: max(1, -(-len(moments) // MOST_TICKS))],
        worker_columns=words.worker_columns(summary),
    )


def _whole_run(summary: Summary) -> dict[str, float]:
    """Seconds of the run by what they were spent on."""
    steps_s: dict[int, float] = {}
    for worker in summary.workers:
        steps_s[worker.start] = max(steps_s.get(worker.start, 0.0), worker.measured_s)
    whole = {"start": summary.other_s["start"], "steps": sum(steps_s.values()), **summary.other_s}
    whole["other"] = max(0.0, summary.running_s - sum(whole.values()))
    return {part: seconds for part, seconds in whole.items() if seconds}


def _written(value: object) -> str:
    """A value of `run.json` as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_written(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_written, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
