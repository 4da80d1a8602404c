"""A run's summary as one page of HTML that needs nothing else: no network, no server, no other file.

All text of users (names, hosts, reasons, warnings) passes `text`. The page's own policy lets no script run but the two
that it was written with, so that even a mistake in here could not run what a name contains.
"""

from __future__ import annotations

import base64
import hashlib
import html
import time
from functools import cache
from importlib.resources import files

from cordee.core.words import plural
from cordee.watch.pageparts import cards, details, happened, lanes, panel_split, story, text, workers_table
from cordee.watch.plots import metric_names, plot_data, shown_numbers
from cordee.watch.summary import Summary
from cordee.watch.words import duration, large, milliseconds

SIGNS = {"completed": "✓", "interrupted": "⏸", "failed": "✕", "killed": "✕", "running": "●", "unknown": "?"}
WORDS = {"running": "going on", "unknown": "no end on record"}
_MOUNTAIN = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M1 20 9 6l4 7 3-5 7 12z" fill="none" stroke="currentColor" '
    'stroke-width="1.8" stroke-linejoin="round"/></svg>'
)


@cache
def asset(name: str) -> str:
    """A file that comes with this folder."""
    return (files("cordee.watch") / "assets" / name).read_text(encoding="utf-8").strip()


def render(summary: Summary, now: float) -> str:
    """The whole page."""
    scripts = [asset("uplot.min.js"), asset("report.js")] if summary.losses.step else []
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {_allowed(scripts)}"
    body = [_head(summary, now), "<main>", cards(summary), story(summary, now)]
    body += _plots(summary) if summary.losses.step else [_nothing(summary)]
    body += [lanes(summary), happened(summary), workers_table(summary), details(summary), "</main>", _foot(now)]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">',
            '<meta name="color-scheme" content="light dark">',
            f'<title>{text(summary.name)} – Cordée</title><link rel="icon" href="data:,">',
            f"<style>{asset('uplot.min.css')}\n{asset('report.css')}</style></head><body>",
            *body,
            f'<script type="application/json" id="data">{plot_data(summary)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            f"<!-- The plots are drawn by uPlot.\n{asset('uplot-LICENSE.txt')}\n-->",
            "</body></html>",
            "",
        ]
    )


def _allowed(scripts: list[str]) -> str:
    """The scripts by their digests."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


def _head(summary: Summary, now: float) -> str:
    word = WORDS.get(summary.state, summary.state)
    code = f", exit code {summary.code}" if summary.state == "failed" else ""
    facts = [
        f"started {_date(summary.started)}" if summary.started else "",
        f"ran for {duration(summary.running_s)}" if summary.running_s else "",
        plural(int(summary.run["workers"]), "worker") if summary.run.get("workers") else "",
        f"plan {summary.plan}" if summary.plan else "",
        f"{summary.starts} starts" if summary.starts > 1 else "",
    ]
    return (
        f'<header class="top"><div class="brand">{_MOUNTAIN}Cordée · report of a run</div>'
        f'<div class="title"><h1>{text(summary.name)}</h1>'
        f'<span class="pill {summary.state}"><span aria-hidden="true">{SIGNS[summary.state]}</span>{word}{code}</span>'
        f'</div><p class="under">{" · ".join(text(fact) for fact in facts if fact)}</p></header>'
    )


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _nothing(summary: Summary) -> str:
    why = "yet: it is still starting" if summary.state == "running" else "on record: there is nothing to plot"
    return f'<h2>Training</h2><div class="panel"><p class="nothing">No step {why}.</p></div>'


def _foot(now: float) -> str:
    return (
        f"<footer>Written {_date(now)}. <code>cordee report</code> writes it anew, and also gives tables, JSON, "
        "a trace for Perfetto, and files for TensorBoard.</footer>"
    )


# ------------------------------------------------------------- plots


def _plots(summary: Summary) -> list[str]:
    return [
        "<h2>Training</h2>",
        _switch(summary),
        *_training(summary),
        *([panel_split(summary), _grid(_figure_split(summary))] if summary.split.workers else []),
        *_speed(summary),
        *_usage(summary),
    ]


def _grid(*figures: str) -> str:
    return f'<div class="plots">{"".join(figures)}</div>' if figures else ""


def _training(summary: Summary) -> list[str]:
    """The loss, and the metrics beside it or below it."""
    known = [value for value in summary.losses.values["loss"] if value is not None]
    note = "no finite loss is on record"
    if known:
        note = f"training from {known[0]:.4g} to {known[-1]:.4g} in {plural(summary.steps, 'step')}"
    control = '<label><input type="checkbox" id="log">logarithmic</label>'
    loss = _figure("loss", "Loss", note, control=control)
    metrics = [
        _figure("metric", f"Validation: {name}", "after each epoch", name=name) for name in metric_names(summary)
    ]
    beside = {
        "lr": ("Learning rate", "of the first group of parameters"),
        "grad_norm": ("Gradient norm", "before clipping"),
    }
    more = [_figure(name, *words) for name, words in beside.items() if name in summary.losses.values]
    return [_grid(loss, *metrics, *more)] if len(metrics) == 1 else [_grid(loss), _grid(*metrics, *more)]


def _speed(summary: Summary) -> list[str]:
    slow = summary.latency
    spread = f"median {milliseconds(slow.p50)}, longest {milliseconds(slow.longest)}; far longer ones are cut off"
    beyond = f"; {plural(slow.beyond, 'longer step')} not shown" if slow.beyond else ""
    quantiles = f"p50 {milliseconds(slow.p50)}, p95 {milliseconds(slow.p95)}, p99 {milliseconds(slow.p99)}{beyond}"
    made = [
        _figure("throughput", "Throughput", f"{large(summary.throughput)} samples/s over all steps"),
        _figure("latency", "Length of a step", spread),
        _figure("histogram", "Steps by their length in ms", quantiles),
    ]
    if summary.split.workers:
        made.append(_figure("shares", "Shares", "the part of every step's samples that each worker computes, in %"))
    return ["<h2>Speed</h2>", _grid(*made)]


def _switch(summary: Summary) -> str:
    kinds = {one.kind for one in summary.incidents}
    signs = {
        "failure": "<span><b>✕</b> a worker was lost</span>",
        "regroup": "<span><b>○</b> the others went on</span>",
        "resume": '<span><b class="again">↻</b> resumed</span>',
    }
    marks = "".join(sign for kind, sign in signs.items() if kind in kinds)
    return (
        '<div class="bar-row"><fieldset><legend>Plots over</legend>'
        '<label><input type="radio" name="axis" value="step" checked>steps</label>'
        '<label><input type="radio" name="axis" value="seconds">time</label></fieldset>'
        f'<span class="marks">{marks}</span></div>'
    )


def _figure(kind: str, title: str, note: str, *, name: str = "", small: bool = False, control: str = "") -> str:
    spoken = f"{title}: {note}" if note else title
    return (
        f"<figure><figcaption><h3>{text(title)}</h3>{control}"
        f'<span class="soft">{text(note)}</span></figcaption>'
        f'<div class="plot{" small" if small else ""}" role="img" aria-label="{text(spoken)}" data-plot="{kind}" '
        f'data-name="{text(name)}"></div></figure>'
    )


def _figure_split(summary: Summary) -> str:
    there = (one for one in shown_numbers(summary) if str(one) in summary.split.workers)
    options = "".join(f'<option value="{one}">worker {one}</option>' for one in there)
    control = f'<label>of <select id="whose"><option value="all">all workers</option>{options}</select></label>'
    return _figure("split", "Parts of a step over the run", "milliseconds per step", control=control)


def _usage(summary: Summary) -> list[str]:
    plots = {
        "cores": ("Processor", "cores that each worker keeps busy"),
        "memory_mb": ("Memory", "MiB of each worker, what it shares with its siblings included"),
        "gpu_mb": ("GPU memory", "MiB of each worker"),
        "sent_mb_s": ("Sent", "MiB/s that each worker gives to collectives"),
    }
    if not summary.resources["gpu_mb"]:
        del plots["gpu_mb"]
    if not summary.resources["bytes_sent"]:
        del plots["sent_mb_s"]
    known = {name for one in summary.usage.values() for name, column in one.values.items() if set(column) - {None}}
    made = [
        _figure("usage", title, f"{note}, over time", name=name, small=True)
        for name, (title, note) in plots.items()
        if name in known  # of a brief run no rate is
    ]
    return ["<h2>Resources</h2>", _grid(*made)] if made else []
