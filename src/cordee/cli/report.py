"""`cordee report`: a run as tables, as JSON, and as files for other viewers."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cordee.core import damage
from cordee.core.errors import UsageError
from cordee.core.text import plain
from cordee.core.words import plural
from cordee.watch.summary import Summary, Worker
from cordee.watch.words import (
    amount,
    best,
    describe,
    duration,
    ending,
    figure,
    losses,
    milliseconds,
    number,
    parts_of,
    percent,
    step_length,
    verdict,
    worker_columns,
)

WIDTH = 120
"""Of the tables where standard output is no terminal."""
MOST_NAMED = 5
MOST_ROWS = 40
TEXTS = ("", "worker", "host", "device", "what")
"""Columns of text; the others hold numbers."""


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, which may still be running.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print it all as JSON, and write no report.html.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Also write a trace for Perfetto to this file.")] = None,
    steps: Annotated[str | None, typer.Option(help="Steps that the trace shows, as FIRST:LAST.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write event files for TensorBoard there.")] = None,
) -> None:
    """Show the result of a run, and write its report.html anew."""
    from cordee.runtime.folder import is_held
    from cordee.watch.summarise import damaged_run, summarise
    from cordee.watch.trace import StepRange, write_trace

    shown = StepRange.parse(steps)
    if steps is not None and trace is None:
        raise UsageError("--steps says which steps a trace shows: name its file with --trace")
    folder = find_run(run)
    held = is_held(folder)  # before the record is read: a run that ends meanwhile has its end there
    now = time.time()
    summary = seen(summarise(folder, now), held)
    with damage.named(damaged_run(folder)):
        if as_json:
            print(json.dumps(summary.to_dict(), allow_nan=False))
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
        from cordee.watch.page import render
        from cordee.watch.report import save_report

        with damage.named(damaged_run(folder)):
            page = render(summary, now)
        print(f"report: {save_report(folder, page)}")


def seen(summary: Summary, held: bool | None) -> Summary:
    """What the record does not tell of a run without an end, but the hold on its folder does: whether it goes on."""
    if summary.state not in ("running", "unknown") or not summary.starts or held is None:
        return summary
    return dataclasses.replace(summary, state="running" if held else "killed")


def find_run(run: Path) -> Path:
    """The folder of a run, or an error that names what is near."""
    folder = run.parent if run.is_file() else run
    if (folder / "events.jsonl").is_file():
        return folder
    expected = "expected the folder of a run, with a file events.jsonl"
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder.absolute()}: {expected}")
    beneath = [path for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/events.jsonl")]
    newest = sorted(beneath, key=lambda path: path.stat().st_mtime, reverse=True)
    given, near = f"{folder} is not a run itself", "beneath it"
    if run.is_file():
        given, near = f"{run} is a file, but not one of a run", "near it"
    elif not newest:
        given = f"{folder.absolute()} holds no events.jsonl, nor does a folder in it"
    if not newest:
        raise UsageError(f"{given}: {expected}")
    names = ", ".join(str(path.parent) for path in newest[:MOST_NAMED])
    rest = f" and {len(newest) - MOST_NAMED} more" if len(newest) > MOST_NAMED else ""
    raise UsageError(f"{given}: {expected}. Runs {near}, the newest first: {names}{rest}")


# ------------------------------------------------------------- tables


def show(summary: Summary, now: float) -> None:
    """The summary on standard output."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"{plain(summary.name)}: {ending(summary, now)}", style="bold")
    for sentence in (*losses(summary)[:MOST_NAMED], verdict(summary.workers)):
        if sentence:
            console.print(plain(sentence))
    parts = parts_of(summary.workers)
    for table in (
        _table("", ("", ""), _figures(summary)),
        _table("validation", ("after step", *summary.metrics.values), _epochs(summary)),
        _table("where the time of the steps went", ("worker", "per step", *parts), _split(summary, parts)),
        _table("workers", [name for name, *_ in worker_columns(summary)], _workers(summary)),
        _table("what happened", ("after", "step", "what", ""), _incidents(summary)),
    ):
        if table is not None:
            console.print(table)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Any:
    """A table; None if it has no row."""
    from rich import box
    from rich.table import Table

    made = list(rows)
    if not made:
        return None
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(columns))
    for column in columns:
        table.add_column(plain(column), justify="left" if column in TEXTS else "right", overflow="fold")
    for row in made:
        table.add_row(*map(plain, row))
    return table


def _figures(summary: Summary) -> Iterable[tuple[str, str]]:
    of = f" of {summary.last_step:,}" if summary.last_step else ""
    yield "steps", f"{summary.steps:,}{of}"
    yield "epochs", f"{summary.epochs:,}"
    yield "samples", f"{summary.samples:,}"
    if summary.losses.step:
        yield "training loss", figure(summary.loss)
    if summary.lr is not None:
        yield "learning rate", f"{summary.lr:.4g}"
    if summary.grad_norm is not None:
        yield "gradient norm", f"{summary.grad_norm:.4g}"
    for part, values in (("validation", summary.validation), ("test", summary.test)):
        for name, value in values.items():
            yield f"{part} {name}", figure(value)
    if named := best(summary.result):
        yield "best checkpoint", named
    if summary.losses.step:
        yield "throughput", f"{number(summary.throughput)} samples/s"
        slow = summary.latency
        yield "step p50 / p95 / p99", " / ".join(milliseconds(one) for one in (slow.p50, slow.p95, slow.p99))
    yield "plan", summary.plan or "not known"
    yield "faithfulness", summary.faithfulness or "not known"
    yield "workers lost", str(summary.failures)
    yield "checkpoints", str(summary.checkpoints)
    yield "start / evaluation / saving", " / ".join(duration(seconds) for seconds in summary.other_s.values())
    used = summary.resources
    yield "processor time, sent", f"{duration(used['cpu_s'])}, {amount(used['bytes_sent'])}"
    yield "worker-hours", f"{used['worker_hours']:.3g}"
    if "order_sha256" in summary.result:
        lost, twice = summary.result["samples_lost"], summary.result["samples_repeated"]
        yield "samples lost / repeated", f"{lost} / {twice}"
        yield "order sha256", str(summary.result["order_sha256"])


def _epochs(summary: Summary) -> Iterable[list[str]]:
    rows = list(zip(summary.metrics.step, *summary.metrics.values.values(), strict=True))
    if not summary.metrics.values:
        return
    for step, *values in rows[-10:]:
        yield [f"{step:,}", *("–" if value is None else figure(value) for value in values)]


def _split(summary: Summary, parts: Sequence[str]) -> Iterable[list[str]]:
    for one in summary.workers[:MOST_ROWS]:
        if one.timed:
            yield [
                _worker(one, summary.starts),
                step_length(one),
                *(percent(one.share(part)) for part in parts),
            ]


def _worker(one: Worker, starts: int) -> str:
    """Its number, of which start it was, and whether it was lost."""
    more = ", ".join(filter(None, (f"start {one.start}" if starts > 1 else "", "lost" if one.lost else "")))
    return f"{one.worker}{f' ({more})' if more else ''}"


def _workers(summary: Summary) -> Iterable[list[str]]:
    columns = worker_columns(summary)
    for one in summary.workers[:MOST_ROWS]:
        yield [text(one) for _, _, text in columns]
    if len(summary.workers) > MOST_ROWS:
        hidden = plural(len(summary.workers) - MOST_ROWS, "more worker")
        yield [f"… {hidden}", *[""] * (len(columns) - 1)]


def _incidents(summary: Summary) -> Iterable[list[str]]:
    for one in summary.incidents[:MOST_ROWS]:
        yield [duration(one.seconds), f"{one.step:,}", one.kind, describe(one)]
    hidden = max(0, len(summary.incidents) - MOST_ROWS) + summary.left_out
    if hidden:
        yield ["", "", "", f"{plural(hidden, 'more record')}"]
