"""The figures of a scaling measurement: a table for the terminal, JSON for programs, a page for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from cordee.core.scaling import FEWEST_ROUNDS, Estimate, Figures, Timed
from cordee.core.words import plural
from cordee.watch.page import fill
from cordee.watch.words import number

WIDE = 2.0
"""An interval whose ends differ by more than this factor says little."""


@dataclass(frozen=True)
class Setup:
    """What was measured, where and how."""

    job: str
    plan: str
    scaling: str
    """`weak` or `strong`."""
    rounds: int
    steps: int
    warm_up: int
    device: str
    """`cpu` or `cuda`; `auto` where an engine's places have decided."""
    threads_per_worker: int
    cores: int
    gpus: int | None
    """None on the CPU."""
    host: str
    versions: dict[str, str]
    measured: str
    """Date and time."""
    engine: str = ""
    """What gave the workers places on other machines than `host`; empty: they were there."""

    @property
    def name(self) -> str:
        """The job's file, without its folders."""
        return PurePath(self.job).name

    @property
    def machine(self) -> str:
        """What the workers had."""
        if self.engine:
            return f"in places of {self.engine}, {plural(self.threads_per_worker, 'thread')} per worker"
        gpus = "" if self.gpus is None else f" and {plural(self.gpus, 'GPU')}"
        return f"{plural(self.cores, 'usable core')}{gpus}, {plural(self.threads_per_worker, 'thread')} per worker"

    @property
    def kind(self) -> str:
        """Strong or weak, in words."""
        batch = "the batch grows with the workers" if self.scaling == "weak" else "the global batch stays the same"
        return f"{self.scaling} scaling ({batch})"

    @property
    def times(self) -> str:
        """How often what was measured."""
        return f"{plural(self.rounds, 'round')} of {self.steps} steps after {self.warm_up} to warm up"

    @property
    def has_intervals(self) -> bool:
        """Whether there were rounds enough for them."""
        return self.rounds >= FEWEST_ROUNDS

    @property
    def about_intervals(self) -> str:
        """What the intervals are of."""
        if not self.has_intervals:
            return (
                f"No 95 % intervals: {plural(self.rounds, 'round')} cannot show how much runs differ from one "
                f"another. Take --rounds {FEWEST_ROUNDS} or more."
            )
        return f"95 % intervals are over the {self.rounds} rounds; speed-ups compare runs of the same round."


def warning(setup: Setup, measured: Sequence[Figures]) -> str | None:
    """Which counts say nothing of a larger machine; None if all had what they needed."""
    counts = [one.workers for one in measured if one.oversubscribed]
    if not counts:
        return None
    threads = setup.threads_per_worker
    what = [f"{setup.cores} usable cores"] if any(count * threads > setup.cores for count in counts) else []
    what += [plural(setup.gpus, "GPU")] if setup.gpus is not None and max(counts) > setup.gpus else []
    workers = " and ".join(filter(None, [", ".join(map(str, counts[:-1])), str(counts[-1])]))
    return (
        f"Oversubscribed: {workers} workers of {plural(threads, 'thread')} share {' and '.join(what)}. "
        "Their figures show what sharing costs here, and say nothing of a machine that has enough."
    )


def wide_intervals(measured: Sequence[Figures]) -> str | None:
    """What to do if the rounds differ so much that little can be said; None if they do not."""
    spans = [one.speed_up.span for one in measured if one.speed_up is not None and one.speed_up.span is not None]
    if all(high <= WIDE * low for low, high in spans):
        return None
    return "The intervals are wide: is the machine busy? More --rounds and --steps make them narrower."


def as_table(setup: Setup, measured: Sequence[Figures]) -> str:
    """For the terminal; counts with an asterisk are oversubscribed."""
    cells = [_cells(one) for one in measured]
    columns = [["workers", *(f"{one.workers}{'*' if one.oversubscribed else ' '}" for one in measured)]]
    for name in [name for name in cells[-1] if name not in ("workers", "batch")]:
        columns.append([name, *(row[name][0] for row in cells)])
        if name in ("speed-up", "efficiency") and setup.has_intervals:
            columns.append(["95 %", *(row[name][1] for row in cells)])
    widths = [max(map(len, column)) for column in columns]
    note = warning(setup, measured)
    lines = [
        f"{setup.name}: {setup.kind}",
        f"{setup.times}; {setup.machine}; plan: {setup.plan}",
        "",
        *("  ".join(map(str.rjust, row, widths)).rstrip() for row in zip(*columns, strict=True)),
        "",
        f"* {note}" if note else None,
        setup.about_intervals if len(measured) > 1 else "One number of workers: there is no speed-up.",
        wide_intervals(measured),
    ]
    return "\n".join(line for line in lines if line is not None)


def _cells(one: Figures) -> dict[str, tuple[str, str]]:
    """What was measured with one number of workers: each figure and its interval as text, by name."""
    figures = (
        ("p50 ms", one.p50_ms, number, ""),
        ("p95 ms", one.p95_ms, number, ""),
        ("samples/s", one.throughput, number, ""),
        ("speed-up", one.speed_up, "{:.2f}".format, ""),
        ("efficiency", one.efficiency and one.efficiency.times(100), "{:.0f}".format, " %"),
    )
    cells = {"workers": (str(one.workers), "oversubscribed" * one.oversubscribed), "batch": (f"{one.batch:,}", "")}
    for name, value, write, unit in figures:
        if value is not None:
            interval = " to ".join(map(write, value.span or ()))
            cells[name] = (write(value.value) + unit, interval and interval + unit)
    return cells


def as_json(setup: Setup, measured: Sequence[Figures], runs: Sequence[Timed]) -> dict[str, Any]:
    """For programs: what the table says, and every measured step."""
    return {
        "form": 1,
        **dataclasses.asdict(setup),
        "relative_to": measured[0].workers,
        "oversubscribed": [one.workers for one in measured if one.oversubscribed],
        "warning": warning(setup, measured),
        "intervals": setup.about_intervals,
        "counts": [_count(one) for one in measured],
        "runs": [
            {
                "round": run.round,
                "workers": run.workers,
                "step_ms": [_rounded(seconds * 1e3) for seconds in run.seconds],
                "samples": list(run.samples),
            }
            for run in runs
        ],
    }


def _count(one: Figures) -> dict[str, Any]:
    """The figures of one number of workers, each with its interval beside it."""
    step: dict[str, Any] = {}
    count = {"workers": one.workers, "batch": one.batch, "step_ms": step, "oversubscribed": one.oversubscribed}
    for into, names in ((step, ("p50", "p95")), (count, ("throughput", "speed_up", "efficiency"))):
        for name in names:
            value: Estimate | None = getattr(one, f"{name}_ms" if into is step else name)
            into[name] = value and _rounded(value.value)
            into[f"{name}_95"] = value and value.span and [_rounded(end) for end in value.span]
    return count


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")


# ------------------------------------------------------------- page


def as_page(setup: Setup, measured: Sequence[Figures]) -> str:
    """One HTML file with plots and the table."""
    figures = {"throughput": _plot("samples/s", [one.throughput for one in measured], [None] * len(measured))}
    if len(measured) > 1:
        ideal = [one.workers / measured[0].workers for one in measured]
        figures["speed_up"] = _plot("speed-up", [one.speed_up or Estimate(1.0) for one in measured], ideal)
    workers, shared = [one.workers for one in measured], [one.oversubscribed for one in measured]
    return fill(
        "scaling.html",
        data={"scaling": {"workers": workers, "shared": shared, "figures": figures}},
        drawn=True,
        title=f"Scaling of {setup.name}",
        facts=[setup.kind, setup.times, setup.machine, f"plan {setup.plan}"],
        setup=setup,
        workers=workers,
        rows=[_cells(one) for one in measured],
        warning=warning(setup, measured),
        wide=wide_intervals(measured),
    )


def _plot(label: str, values: Sequence[Estimate], ideal: Sequence[float | None]) -> dict[str, Any]:
    """What is drawn of one figure."""
    columns = {"values": [one.value for one in values], "low": [one.low for one in values]}
    return {"label": label, **columns, "high": [one.high for one in values], "ideal": ideal}
