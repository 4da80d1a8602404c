"""The parts of a report that need no plotting: figures at its head, bars, lanes, tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cordee.core.words import plural
from cordee.watch.plots import MOST_METRICS, shown, shown_numbers, spans_of
from cordee.watch.summary import Summary, Worker
from cordee.watch.words import (
    amount,
    best,
    called,
    cause,
    cores_of,
    duration,
    ending,
    figure,
    large,
    losses,
    milliseconds,
    parts_of,
    percent,
    samples_of,
    steps_of,
    verdict,
)

LABELLED = 0.07
"""A part of a bar that is narrower has no number in it."""
MOST_TICKS = 100
TICKED = ("regroup", "resume", "fault")
"""What has its sign in the lane of the run."""
SIGNS = {"failure": "✕", "resume": "↻", "regroup": "○", "fault": "ϟ"}
KINDS = {
    "failure": "worker lost",
    "regroup": "regrouped",
    "resume": "resumed",
    "attempt": "not resumed",
    "fault": "done on purpose",
    "links": "links measured",
    "warning": "note",
    "end": "end",
}


def text(value: object) -> str:
    """Anything as text of the page."""
    return html.escape(str(value))


# ------------------------------------------------------------- head


def cards(summary: Summary) -> str:
    """The headline figures."""
    of = f" of {summary.last_step:,}" if summary.last_step else ""
    made = [("Steps", f"{summary.steps:,}{of}", plural(summary.epochs, "epoch"), "")]
    if summary.losses.step:
        made.append(("Training loss", figure(summary.loss), "last step", ""))
    for part, values in (("Validation", summary.validation), ("Test", summary.test)):
        shown_values = list(values.items())[: MOST_METRICS + 1]  # the loss is one of them
        made += [(f"{part} {name}", figure(value), "", "") for name, value in shown_values]
    if summary.losses.step:
        made.append(("Throughput", large(summary.throughput), "samples/s", ""))
        slow = summary.latency
        made.append(("Step, median", milliseconds(slow.p50), f"p95 {milliseconds(slow.p95)}", ""))
    lost = "bad" if summary.failures else ""
    of = f"of {len(summary.workers)}" + (f" in {summary.starts} starts" if summary.starts > 1 else "")
    made.append(("Workers lost", str(summary.failures), of if summary.workers else "", lost))
    if "samples_lost" in summary.result:
        wrong = summary.result["samples_lost"] + summary.result["samples_repeated"]
        word = f"{summary.result['samples_lost']} lost, {summary.result['samples_repeated']} repeated"
        made.append(("Samples", "each once" if not wrong else "not each once", word, "bad" if wrong else ""))
    return f'<dl class="cards">{"".join(_card(*one) for one in made)}</dl>'


def _card(label: str, value: str, note: str, kind: str) -> str:
    small = f"<small>{text(note)}</small>" if note else ""
    return f'<div class="{kind}"><dt>{text(label)}</dt><dd>{text(value)}{small}</dd></div>'


def story(summary: Summary, now: float) -> str:
    """What to know, in sentences."""
    told = losses(summary)
    lines = [f"<p>{text(ending(summary, now))}</p>"]
    if named := best(summary.result):
        lines.append(f"<p>The best checkpoint: {text(named)}.</p>")
    lines += [f'<p class="lost">{text(sentence)}</p>' for sentence in told[:5]]
    if len(told) > 5:
        lines.append(f'<p class="lost">{text(plural(len(told) - 5, "more worker"))} lost: see below.</p>')
    said = verdict(summary.workers)
    if said:
        lines.append(f'<p class="verdict">{text(said)}</p>')
    return f'<section class="story {summary.state}" aria-label="In words">{"".join(lines)}</section>'


# ------------------------------------------------------------- where the time went


def panel_split(summary: Summary) -> str:
    """Bars: the whole run, and the steps of every worker."""
    steps_s: dict[int, float] = {}
    for one in summary.workers:
        steps_s[one.start] = max(steps_s.get(one.start, 0.0), one.measured_s)
    whole = {
        "start": summary.other_s["start"],
        "steps": sum(steps_s.values()),
        "evaluation": summary.other_s["evaluation"],
        "saving": summary.other_s["saving"],
    }
    whole["other"] = max(0.0, summary.running_s - sum(whole.values()))
    rows = "".join(_worker_bar(one, summary.starts) for one in shown(summary) if one.measured_s)
    spent = duration(sum(whole.values()))
    more = f'<p class="after">{text(hidden)}</p>' if (hidden := _hidden(summary)) else ""
    return (
        "<h2>Where the time went</h2>"
        f'<div class="panel"><h3>The whole run</h3>{_key(whole)}<div class="split">'
        f'<div class="group"><div class="who">the run</div>{_stack(whole)}<div class="ms">{text(spent)}'
        '</div></div></div></div><div class="panel"><h3>The steps of each worker</h3>'
        f'{_key(dict.fromkeys(parts_of(summary.workers), 1.0))}<div class="split">{rows}</div>{more}</div>'
    )


def _hidden(summary: Summary) -> str:
    """How many workers the page leaves out, and where they are; empty if it has all."""
    hidden = len(summary.workers) - len(shown(summary))
    return f"{plural(hidden, 'worker')} not shown; cordee report --json has all." if hidden else ""


def _worker_bar(one: Worker, starts: int) -> str:
    where = " · ".join(filter(None, (one.host, one.device)))
    lost = ' <span class="lost">✕ lost</span>' if one.lost else ""
    return (
        f'<div class="group"><div class="who">{called(one, starts)}{lost}<small>{text(where)}</small></div>'
        f"{_stack(one.time_s)}"
        f'<div class="ms">{text(milliseconds(one.step_ms))} per step{_known(one)}</div></div>'
    )


def _known(one: Worker) -> str:
    """Of how many steps a bar tells, if not of all."""
    return f"<small>{one.timed:,} of {one.steps:,} steps known</small>" if one.timed < one.steps else ""


def _key(parts: Mapping[str, float]) -> str:
    items = "".join(f'<li><i class="{part}"></i>{part}</li>' for part, seconds in parts.items() if seconds)
    return f'<ul class="key">{items}</ul>'


def _stack(parts: Mapping[str, float]) -> str:
    whole = sum(parts.values()) or 1.0
    pieces = "".join(
        f'<span class="{part}" style="width:{100 * seconds / whole:.2f}%" title="{part} {percent(seconds / whole)}">'
        f"{percent(seconds / whole) if seconds / whole >= LABELLED else ''}</span>"
        for part, seconds in parts.items()
        if seconds > 0
    )
    spoken = ", ".join(f"{part} {percent(seconds / whole)}" for part, seconds in parts.items())
    return f'<div class="stack" role="img" aria-label="{text(spoken)}">{pieces}</div>'


# ------------------------------------------------------------- what happened when


def lanes(summary: Summary) -> str:
    """Who was there when, and when something happened."""
    whole = summary.running_s
    if not whole or not summary.workers:
        return ""
    rows = [f'<div>run</div><div class="lane">{_ticks(summary, whole)}</div>']
    for number in shown_numbers(summary):
        spans = "".join(
            f'<i style="left:{100 * begin / whole:.2f}%;width:{max(0.0, 100 * (end - begin) / whole):.2f}%"></i>'
            for begin, end in spans_of(summary, number)
        )
        lost = "".join(
            _sign("failure", event.seconds, whole, event.text)
            for event in summary.incidents
            if event.kind == "failure" and event.worker == number
        )
        rows.append(f'<div>worker {number}</div><div class="lane">{spans}{lost}</div>')
    axis = "".join(f"<span>{text(duration(whole * share))}</span>" for share in (0.0, 0.5, 1.0))
    ticks = (
        '<i style="background:var(--saving)"></i>checkpoint</li><li><i style="background:var(--soft)"></i>epoch</li>'
    )
    faults = "<li>ϟ done on purpose</li>" if any(one.kind == "fault" for one in summary.incidents) else ""
    return (
        f'<h2>Time line</h2><div class="panel"><ul class="key"><li>{ticks}<li>✕ worker lost</li><li>○ going on</li>'
        f"<li>↻ resumed</li>{faults}</ul>"
        f'<div class="lanes">{"".join(rows)}<div></div><div class="axis">{axis}</div></div></div>'
    )


def _ticks(summary: Summary, whole: float) -> str:
    epochs = [f'<u class="epoch" style="left:{100 * at / whole:.2f}%"></u>' for at in _few(summary.metrics.seconds)]
    saves = [f'<u style="left:{100 * at / whole:.2f}%"></u>' for at in _few(summary.saves.seconds)]
    signs = [_sign(one.kind, one.seconds, whole, one.text) for one in summary.incidents if one.kind in TICKED]
    return "".join((*epochs, *saves, *signs))


def _few(moments: Sequence[float]) -> Sequence[float]:
    return moments[:: max(1, -(-len(moments) // MOST_TICKS))]


def _sign(kind: str, seconds: float, whole: float, what: str) -> str:
    left = min(100.0, 100 * seconds / whole)
    return f'<b class="{kind}" style="left:{left:.2f}%" title="{text(what)}">{SIGNS[kind]}</b>'


def happened(summary: Summary) -> str:
    """The list of what happened."""
    rows = []
    for one in summary.incidents:
        took = f" (after {duration(one.ms / 1e3)})" if one.kind == "regroup" and one.ms is not None else ""
        rows.append(
            f"<tr>{_cell('after', duration(one.seconds), 'number')}{_cell('step', f'{one.step:,}', 'number')}"
            f"{_cell('what', KINDS.get(one.kind, one.kind), one.kind)}{_cell('', one.text + took, 'text')}</tr>"
        )
    if summary.left_out:
        rows.append(f'<tr><td colspan="4">{text(plural(summary.left_out, "more record"))} not listed</td></tr>')
    saved = f"{plural(summary.checkpoints, 'checkpoint')} saved."
    if not rows:
        return f'<h2>What happened</h2><div class="panel"><p>{text(saved)}</p></div>'
    return (
        '<h2>What happened</h2><div class="panel"><table class="fold"><thead><tr><th class="number">after</th>'
        f'<th class="number">step</th><th>what</th><th></th></tr></thead><tbody>{"".join(rows)}</tbody></table>'
        f'<p class="after">{text(saved)}</p></div>'
    )


def _cell(name: str, value: object, kind: str = "") -> str:
    return f'<td class="{kind}" data-name="{text(name)}">{text(value)}</td>'


# ------------------------------------------------------------- tables


def workers_table(summary: Summary) -> str:
    """Every worker: where it runs, what it did, what it used."""
    if not summary.workers:
        return ""
    gpus = any(one.gpu_mb for one in summary.workers)
    several = summary.starts > 1
    names = ["worker", *(["start"] if several else []), "host", "device", "process", "steps", "samples"]
    names += ["processor", "cores", "memory"]
    names += [*(["GPU memory"] if gpus else []), "sent", "present"]
    plain = {"worker", "host", "device"}
    head = "".join(f"<th{'' if name in plain else ' class=number'}>{name}</th>" for name in names)
    rows = []
    for one in shown(summary):
        values: list[object] = [f"{one.worker}{' ✕ lost' if one.lost else ''}", *([one.start] if several else [])]
        values += [one.host, _device(one), one.pid or "–", steps_of(one), samples_of(one)]
        values += [duration(one.cpu_s), cores_of(one)]
        values += [amount(one.memory_mb * 2**20), *([amount(one.gpu_mb * 2**20)] if gpus else [])]
        values += [amount(one.bytes_sent), duration(one.hours * 3600)]
        cells = (
            _cell(name, value, "" if name in plain else "number") for name, value in zip(names, values, strict=True)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    used = summary.resources
    total = (
        f"All workers: {duration(used['cpu_s'])} of processor time, {amount(used['bytes_sent'])} sent, "
        f"{used['worker_hours']:.3g} worker-hours. {_hidden(summary)}"
    )
    return (
        f'<h2>Workers</h2><div class="panel"><div class="scroll"><table class="fold"><thead><tr>{head}</tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="after">{text(total)}</p></div>'
    )


def _device(one: Worker) -> str:
    return f"{one.device}, {plural(one.threads, 'thread')}" if one.threads else one.device


def details(summary: Summary) -> str:
    """What to look up: job, plan, versions, the proof of the samples."""
    run, result = summary.run, summary.result
    about = {
        "folder": summary.folder,
        "target": run.get("target"),
        "plan": summary.plan or None,
        "faithfulness": summary.faithfulness or None,
        "launcher's host": run.get("host"),
        "steps skipped": result.get("steps_skipped") or None,
        "training ended": cause(summary) or None,
        "ended": f"{summary.reason} (exit code {summary.code})" if summary.code is not None else "not on record",
    }
    proof = {
        "samples": f"{summary.samples:,}",
        "lost": result.get("samples_lost"),
        "repeated": result.get("samples_repeated"),
        "order (SHA-256)": result.get("order_sha256"),
        "parameters (SHA-256)": result.get("params_sha256"),
    }
    job = {name: _plain(value) for name, value in (run.get("job") or {}).items()}
    made = _pairs("Run", about.items()) + _pairs("Job", job.items())
    if "order_sha256" in result:
        made += _pairs("Every sample exactly once", proof.items())
    return f"<h2>Details</h2>{made}{_pairs('Versions', (run.get('versions') or {}).items())}"


def _pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> str:
    rows = "".join(
        f"<dt>{text(name)}</dt><dd><code>{text(value)}</code></dd>" for name, value in pairs if value is not None
    )
    return f'<details><summary>{text(title)}</summary><dl class="pairs">{rows}</dl></details>' if rows else ""


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
