"""`cordee report`: a run as tables, as JSON, and as files for other viewers."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from cordee.core import damage
from cordee.core.errors import UsageError
from cordee.core.text import plain
from cordee.core.words import amount, plural
from cordee.watch import byte_words, words
from cordee.watch.summary import Summary
from cordee.watch.verdict import verdict

WIDTH = 120
"""Of the tables where standard output is no terminal."""
MOST_NAMED = 5
MOST_ROWS = 40
TEXTS = ("", "worker", "host", "device", "what", "choice")
"""Columns of text; the others hold numbers."""


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, which may still be running.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print it all as JSON, and write no report.html.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Also write a trace for Perfetto to this file.")] = None,
    steps: Annotated[str | None, typer.Option(help="Steps that the trace shows, as FIRST:LAST.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write event files for TensorBoard there.")] = None,
) -> None:
    """Show the result of a run, and write its report.html again."""
    from cordee.runtime.folder import is_held
    from cordee.watch.summarise import damaged_run, summarise
    from cordee.watch.trace import ALL_STEPS, parse_steps, write_trace

    shown = parse_steps(steps) if steps is not None else ALL_STEPS
    if steps is not None and trace is None:
        raise UsageError("--steps says which steps a trace shows: name its file with --trace")
    folder = find_run(run)
    is_writing = is_held(folder)  # before the record is read: a run that ends meanwhile has its end there
    now = time.time()
    summary = summarise(folder, now, is_writing)
    with damage.named(damaged_run(folder)):
        if as_json:
            print(json.dumps(dataclasses.asdict(summary), allow_nan=False))
        else:
            show(summary, now)
    if trace is not None:
        write_trace(folder, trace, shown)
        print(f"trace: {trace}; open it at https://ui.perfetto.dev", file=sys.stderr if as_json else sys.stdout)
    if tensorboard is not None:
        from cordee.watch.tensorboard import write_tensorboard

        write_tensorboard(folder, tensorboard)
        print(f"tensorboard --logdir {tensorboard}", file=sys.stderr if as_json else sys.stdout)
    if not as_json:
        from cordee.watch.report import write_report

        print(f"report: {write_report(folder, summary, now)}")


def find_run(run: Path) -> Path:
    """The folder of a run, or an error that names what is near."""
    folder = run.parent if run.is_file() else run
    if (folder / "events.jsonl").is_file():
        return folder
    beneath = [path for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/events.jsonl")]
    newest = sorted(beneath, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_NAMED]
    near = f". Runs near it, the newest first: {', '.join(str(path.parent) for path in newest)}" if newest else ""
    raise UsageError(f"{run.absolute()} is no run: expected the folder of one, with a file events.jsonl{near}")


# ------------------------------------------------------------- tables


def show(summary: Summary, now: float) -> None:
    """The summary on standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"{plain(summary.name)}: {words.ending(summary, now)}", style="bold")
    for sentence in (
        *words.losses(summary)[:MOST_NAMED],
        verdict(summary.workers),
        byte_words.traffic(summary),
        byte_words.fed(summary),
    ):
        if sentence:
            console.print(plain(sentence))
    for title, columns, rows in _tables(summary):
        if rows:
            table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(columns))
            for column in columns:
                table.add_column(plain(column), justify="left" if column in TEXTS else "right", overflow="fold")
            for row in rows:
                table.add_row(*map(plain, row))
            console.print(table)


def _tables(summary: Summary) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """Title, names of the columns and rows of each table."""
    yield "", ("", ""), list(_figures(summary))
    metrics, parts, workers = summary.metrics, words.parts_of(summary.workers), summary.workers[:MOST_ROWS]
    epochs = list(zip(metrics.step, *metrics.values.values(), strict=True))[-10:] if metrics.values else []
    rows = [[f"{step:,}", *("–" if one is None else words.figure(one) for one in values)] for step, *values in epochs]
    yield "validation", ("after step", *metrics.values), rows
    columns = words.worker_columns(summary)
    who = [column for column in columns if column[0] in ("worker", "start")]
    rows = [
        [text(one) for _, _, text in who]
        + [words.milliseconds(one.step_ms), *(words.percent(one.share(part)) for part in parts)]
        for one in workers
        if one.steps
    ]
    yield "where the time of the steps went", (*(name for name, *_ in who), "per step", *parts), rows
    yield from _traffic(summary)
    rows = [[text(one) for _, _, text in columns] for one in workers]
    if more := len(summary.workers) - len(workers):
        rows.append([f"… {plural(more, 'more worker')}", *[""] * (len(columns) - 1)])
    yield "workers", [name for name, *_ in columns], rows
    incidents = summary.incidents[:MOST_ROWS]
    rows = [[words.duration(one.seconds), f"{one.step:,}", one.kind, one.text] for one in incidents]
    if more := len(summary.incidents) - len(incidents) + summary.left_out:
        rows.append(["", "", "", plural(more, "more record")])
    yield "what happened", ("after", "step", "what", ""), rows


def _traffic(summary: Summary) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """The tables of what was sent, as `_tables`."""
    carried, columns = summary.traffic, byte_words.byte_columns(summary)
    rows = [[text(one) for _, _, text in columns] for one in summary.workers[:MOST_ROWS] if one.costs["sent"]]
    yield "where the bytes went", [name for name, *_ in columns], rows
    yield "where samples came from", *byte_words.feed_table(summary)
    rows = [
        [
            f"server {number}",
            one["host"],
            amount(one["bytes_sent"]),
            amount(one["bytes_sent"] - one["bytes_near"]),
        ]
        for number, one in carried.servers.items()
    ]
    yield "what parameter servers sent", ("", "host", "sent in all", "left its host"), rows
    rows = [[str(stale), f"{count:,}"] for stale, count in enumerate(carried.staleness)]
    yield "pushes by their staleness", ("staleness", "pushes"), rows
    shown = [*carried.decisions[:MOST_ROWS]]
    rows = [
        [
            f"{one.step:,}",
            f"{words.number(one.link_mbit)} Mbit/s",
            *("–" if ms is None else words.milliseconds(ms) for ms in (one.forecast_ms, one.measured_ms)),
            one.choice if one.before == one.choice else f"{one.before} → {one.choice}",
        ]
        for one in shown
    ]
    if more := len(carried.decisions) - len(shown) + carried.left_out:
        rows.append(["", "", "", "", plural(more, "more decision")])
    yield "what sync=auto decided", ("from step", "link", "forecast", "measured", "choice"), rows


def _figures(summary: Summary) -> Iterator[tuple[str, str]]:
    of = f" of {summary.last_step:,}" if summary.last_step else ""
    yield "steps", f"{summary.steps:,}{of}"
    yield "epochs", f"{summary.epochs:,}"
    yield "samples", f"{summary.samples:,}"
    if summary.losses.step:
        yield "training loss", words.figure(summary.loss)
    if summary.lr is not None:
        yield "learning rate", f"{summary.lr:.4g}"
    if summary.grad_norm is not None:
        yield "gradient norm", f"{summary.grad_norm:.4g}"
    for part, values in (("validation", summary.validation), ("test", summary.test)):
        for name, value in values.items():
            yield f"{part} {name}", words.figure(value)
    if named := words.best(summary.result):
        yield "best checkpoint", named
    if summary.losses.step:
        yield "throughput", f"{words.number(summary.throughput)} samples/s"
        slow = summary.latency
        yield "step p50 / p95 / p99", " / ".join(words.milliseconds(one) for one in (slow.p50, slow.p95, slow.p99))
    yield "plan", summary.plan or "not known"
    yield "faithfulness", summary.faithfulness or "not known"
    yield "workers lost", str(summary.failures)
    yield "checkpoints", str(summary.checkpoints)
    yield "start / evaluation / saving", " / ".join(words.duration(seconds) for seconds in summary.other_s.values())
    used = summary.resources
    yield "processor time, sent", f"{words.duration(used['cpu_s'])}, {amount(used['bytes_sent'])}"
    yield "worker-hours", f"{used['worker_hours']:.3g}"
    if "order_sha256" in summary.result:
        lost, twice = summary.result["samples_lost"], summary.result["samples_repeated"]
        yield "samples lost / repeated", f"{lost} / {twice}"
        yield "order sha256", str(summary.result["order_sha256"])
