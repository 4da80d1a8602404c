"""A scaling measurement as one HTML file: it needs nothing from anywhere, in light and dark, on a phone or a wall."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cordee.core.scaling import Estimate, Figures
from cordee.core.words import plural
from cordee.watch.scaling import Setup, number, span, warning, wide_intervals
from cordee.watch.scaling_charts import speed_up_chart, throughput_chart

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --ink: #1c2024; --muted: #5c656e; --rule: #d9dee3; --main: #1f6bb5;
  --bar: #7fb2e0; --note: #fff4d6; --note-ink: #5a4300; }
@media (prefers-color-scheme: dark) { :root { --back: #15181b; --ink: #e8eaec; --muted: #a0a9b2; --rule: #343a40;
  --main: #7db8f0; --bar: #3f6f9c; --note: #3a3016; --note-ink: #f4dfa4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 0 0 .5rem; }
p { margin: .25rem 0; overflow-wrap: anywhere; }
.muted, figcaption, footer { color: var(--muted); font-size: .875rem; }
.note { background: var(--note); color: var(--note-ink); padding: .6rem .8rem; border-radius: .4rem; margin: 1rem 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1.5rem;
  margin: 1.5rem 0; }
figure { margin: 0; }
svg { display: block; width: 100%; max-width: 34rem; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .muted { fill: var(--muted); font-size: 12px; }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .value { font-weight: 600; paint-order: stroke; stroke: var(--back); stroke-width: 3px; }
.grid { stroke: var(--rule); }
.ideal { stroke: var(--muted); stroke-dasharray: 5 4; stroke-width: 1.5; }
.line { fill: none; stroke: var(--main); stroke-width: 2; }
.whisker line { stroke: var(--ink); stroke-width: 1.25; }
.dot { fill: var(--main); stroke: var(--main); stroke-width: 2; }
.bar { fill: var(--bar); stroke: var(--main); }
.dot.shared, .bar.shared { fill: var(--back); }
.bar.shared { stroke-dasharray: 3 2; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; vertical-align: top; padding: .35rem .5rem; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; font-size: .875rem; vertical-align: bottom; }
td small { display: block; color: var(--muted); white-space: nowrap; }
@media (max-width: 40rem) { thead { position: absolute; clip-path: inset(50%); } tbody, tr { display: block; }
  tr { padding: .5rem 0; border-bottom: 1px solid var(--rule); }
  td { display: flex; gap: .6rem; justify-content: flex-end; align-items: baseline; padding: .1rem 0; border: 0; }
  td::before { content: attr(data-name); order: -2; margin-right: auto; color: var(--muted); }
  td:first-child { font-weight: 600; } td:first-child::before { color: inherit; } td small { order: -1; } }
"""


def page(setup: Setup, found: Sequence[Figures]) -> str:
    """The whole file."""
    noted, name = warning(setup, found), escape(setup.name)
    whiskers = " Whiskers are 95 % intervals." if setup.has_intervals else ""
    against = f"Against {plural(found[0].workers, 'worker')}."
    ideal = "The dashed line is a speed-up in proportion to the workers."
    charts = [_figure("Throughput", throughput_chart(found), f"Samples a second.{whiskers}")]
    if len(found) > 1:
        charts.insert(0, _figure("Speed-up", speed_up_chart(found), f"{against}{whiskers} {ideal}"))
    hollow = " Hollow points and bars are these counts." if noted else ""
    versions = ", ".join(f"{name} {version}" for name, version in setup.versions.items())
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Scaling of {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<h1>Scaling of {name}</h1>",
            f"<p>{escape(_sentence(setup.kind))}, {escape(setup.times)}.</p>",
            f'<p class="muted">{escape(setup.machine)}; plan: {escape(setup.plan)}</p>',
            f'<p class="note" role="note">{escape(noted + hollow)}</p>' if noted else "",
            f'<div class="charts">{"".join(charts)}</div>',
            _table(found),
            f"<p>{escape(wide)}</p>" if (wide := wide_intervals(found)) else "",
            f'<p class="muted">{escape(setup.about_intervals)} A step lasts from the end of the one before to its own '
            "end. p50, p95 and samples/s are those of a run, averaged (geometrically) over the rounds.</p>",
            f"<footer>Measured {escape(setup.measured)} on {escape(setup.host)}; {escape(versions)}</footer>",
            "</body>\n</html>\n",
        ]
    )


def _figure(heading: str, drawing: str, caption: str) -> str:
    return f"<figure><h2>{heading}</h2>{drawing}<figcaption>{caption}</figcaption></figure>"


def _table(found: Sequence[Figures]) -> str:
    several = len(found) > 1
    heads = ["workers", "batch", "step p50 ms", "step p95 ms", "samples/s"] + several * ["speed-up", "efficiency"]
    rows = []
    for one in found:
        cells = [f"{one.workers}{'<small>oversubscribed</small>' if one.oversubscribed else ''}", f"{one.batch:,}"]
        cells += [_plain(one.p50_ms), _plain(one.p95_ms), _plain(one.throughput)]
        if one.speed_up is not None and one.efficiency is not None:
            cells.append(_cell(f"{one.speed_up.value:.2f}", span(one.speed_up)))
            cells.append(_cell(f"{one.efficiency.value * 100:.0f} %", span(one.efficiency, percent=True)))
        # A narrow screen shows a row as a list, where each cell needs its column's name beside it.
        named = zip(heads, cells, strict=True)
        rows.append("<tr>" + "".join(f'<td data-name="{head}">{cell}</td>' for head, cell in named) + "</tr>")
    head = "".join(f'<th scope="col">{word}</th>' for word in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _plain(value: Estimate) -> str:
    low_high = "" if value.span is None else f"{number(value.span[0])} to {number(value.span[1])}"
    return _cell(number(value.value), low_high)


def _cell(value: str, interval: str) -> str:
    short = interval.replace(" to ", "–")
    return value + (f"<small>{short}</small>" if short else "")


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]
