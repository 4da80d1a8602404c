"""`cordee bench`: measure a job on this machine."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cordee.cli.options import (
    Device,
    DryRun,
    Engine,
    EngineSettings,
    JobFile,
    PlanText,
    Settings,
    Trusted,
    engine_settings,
    parse_settings,
    python_file,
)
from cordee.core import damage
from cordee.core.errors import UsageError

if TYPE_CHECKING:
    from cordee.runtime.engines.choice import Chosen
    from cordee.runtime.scaling import Measurement
    from cordee.watch.scaling import Setup

app = typer.Typer(name="bench", help="Measure a job on this machine.", no_args_is_help=True)


@app.callback()
def about() -> None:
    """Measure a job on this machine."""


@app.command()
def scaling(
    job: JobFile,
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers, such as 1,2,4. Default: 1, 2, 4, ... up to one per core.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each number of workers is run.")] = 3,
    steps: Annotated[int, typer.Option(help="Measured steps of a run.")] = 30,
    warm_up: Annotated[int, typer.Option(help="Steps at the beginning of a run that do not count.")] = 5,
    weak: Annotated[bool, typer.Option("--weak", help="Let the batch grow with the workers.")] = False,
    plan: PlanText = "auto",
    set_: Settings = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each worker, in all runs. Default: cores / largest number.")
    ] = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder for the plot and the figures. Default: under runs/.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folders of the runs.")] = False,
    engine: Engine = None,
    engine_set: EngineSettings = None,
    trusted_network: Trusted = False,
    dry_run: DryRun = False,
) -> None:
    """Latency, throughput, speed-up and efficiency with different numbers of workers."""
    from cordee.core.plan import Plan
    from cordee.runtime.api import default_folder, default_workers
    from cordee.runtime.engines.choice import Chosen
    from cordee.runtime.scaling import Measurement
    from cordee.runtime.spec import Target

    python_file(job)
    chosen = Chosen.parse(engine, engine_settings(engine, engine_set, dry_run=dry_run))
    if chosen is not None and workers is None:
        raise UsageError(f"--engine {engine} needs --workers: the numbers of workers, such as 1,2,4")
    counts = parse_counts(workers) if workers is not None else doubling(default_workers(device))
    folder = out or default_folder(f"scaling-{job.stem}")
    if engine == "slurm" and chosen is not None and (dry_run or "SLURM_JOB_ID" not in os.environ):
        _submit(job, folder, max(counts), chosen, trusted_network=trusted_network)
        return
    measurement = Measurement(
        Target("job", str(job), parse_settings(set_)),
        counts,
        Plan.parse(plan),
        folder,
        rounds,
        steps,
        warm_up,
        weak,
        threads,
        device,
        keep,
        chosen,
        trusted_network,
    )
    _measure(measurement, json=json)


def _submit(job: Path, out: Path, most: int, chosen: Chosen, *, trusted_network: bool) -> None:
    """As a batch job that gives this very command: all numbers of workers in one allocation, with room for `most`."""
    from cordee.cli.start import show_submitted
    from cordee.runtime.engines.slurm.settings import Submission
    from cordee.runtime.engines.slurm.submit import hand_in, program

    words = [word for word in sys.argv[1:] if word != "--dry-run"]
    # A measurement cannot go on: put back into the queue it would begin anew, perhaps for ever.
    words += ["--engine-set", "requeue=false", "--out", str(out.absolute())]
    given = Submission((*program(), *words), most, f"scaling-{job.stem}", Path.cwd(), out.absolute(), trusted_network)
    show_submitted(hand_in(given, replace(chosen.settings, requeue=False)))


def parse_counts(text: str) -> tuple[int, ...]:
    """The numbers of workers meant by `1,2,4`."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--workers {text}: expected whole numbers such as 1,2,4") from None
    if min(counts) < 1:
        raise UsageError(f"--workers {text}: {min(counts)} is no number of workers; at least 1 is needed")
    twice = sorted({count for count in counts if counts.count(count) > 1})
    if twice:
        raise UsageError(f"--workers {text}: {twice[0]} is there twice; --rounds repeats all of them")
    return counts


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `most` itself."""
    powers = [2**power for power in range(most.bit_length()) if 2**power < most]
    return (*powers, most)


def _measure(measurement: Measurement, *, json: bool) -> None:
    import json as writer

    from cordee.core.scaling import figures, order_of_runs
    from cordee.watch.progress import Rounds
    from cordee.watch.scaling import as_json, as_page, as_table, warning

    measurement.check()
    setup = _setup(measurement)
    order = order_of_runs(measurement.counts, measurement.rounds)
    runs = []
    with contextlib.closing(Rounds(len(order))) as watcher:
        for number, (round, workers) in enumerate(order, start=1):
            watcher.begin(number, round=round, workers=workers)
            name = f"run {number} of {len(order)} (round {round}, --workers {workers})"
            runs.append(measurement.run(name, round, workers, watcher))
    rows = figures(runs, weak=measurement.weak, oversubscribed=measurement.oversubscribed)
    values = writer.dumps(as_json(setup, rows, runs), indent=1, ensure_ascii=False)
    for name, text in (("scaling.json", f"{values}\n"), ("scaling.html", as_page(setup, rows))):
        with damage.writing(measurement.out / name):
            measurement.out.mkdir(parents=True, exist_ok=True)
            (measurement.out / name).write_text(text, encoding="utf-8")
    if json:
        noted = warning(setup, rows)
        print(values)
        print(*filter(None, [noted, f"plot: {measurement.out / 'scaling.html'}"]), sep="\n", file=sys.stderr)
        return
    print(as_table(setup, rows))
    print(f"plot: {measurement.out / 'scaling.html'}\nfigures: {measurement.out / 'scaling.json'}")


def _setup(measurement: Measurement) -> Setup:
    import platform
    import socket
    import time
    from importlib.metadata import version

    from cordee import __version__
    from cordee.core.machine import usable_cores
    from cordee.watch.scaling import Setup

    gpus = measurement.gpus
    device = "cpu" if gpus is None else "cuda"
    if (engine := measurement.engine) is not None:
        device = measurement.device  # what "auto" is there is not known here
    return Setup(
        job=measurement.target.path,
        plan=str(measurement.plan),
        scaling="weak" if measurement.weak else "strong",
        rounds=measurement.rounds,
        steps=measurement.steps,
        warm_up=measurement.warm_up,
        device=device,
        threads_per_worker=measurement.threads_each,
        cores=len(usable_cores()),
        gpus=gpus,
        host=socket.gethostname(),
        versions={"cordee": __version__, "torch": version("torch"), "python": platform.python_version()},
        measured=time.strftime("%Y-%m-%d %H:%M %z"),
        engine="" if engine is None else engine.name,
    )
