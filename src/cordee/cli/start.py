"""From the options of `train` and `run` to a launch, and its result on the screen."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from cordee.cli.options import python_file
from cordee.core import interrupts
from cordee.core.errors import UsageError
from cordee.core.events import Listener
from cordee.core.machine import usable_cores
from cordee.core.plan import Plan
from cordee.core.text import plain
from cordee.core.times import shares
from cordee.core.world import World
from cordee.runtime.api import default_folder, default_workers
from cordee.runtime.folder import tidied
from cordee.runtime.launch import Launch
from cordee.runtime.relay import Output
from cordee.runtime.resources import parse_cores
from cordee.runtime.spec import Target
from cordee.runtime.start import run
from cordee.runtime.wording import Wording
from cordee.twin.enter import RUN
from cordee.watch.progress import ProgressView
from cordee.watch.report import reported
from cordee.watch.words import LEAST_CALLBACKS, best


@dataclass(frozen=True)
class Options:
    """What was given on the command line."""

    workers: int | None
    plan: str
    out: Path | None
    resume: bool
    threads: int | None
    cores: str | None
    deadline: float
    device: str
    meeting: tuple[str | None, int | None, Path | None, bool]
    """--rendezvous, --nodes, --token-file, --trusted-network."""


def start(target: Target, options: Options) -> None:
    """Run it and show the result."""
    world = World.from_env()
    if world.source not in ("alone", "cordee"):
        interrupts.raise_at_once()  # it is for that launcher to stop all of its processes
        _start(target, options, world)
        return
    with interrupts.counted():
        _start(target, options, world)


def _start(target: Target, options: Options, world: World) -> None:
    rendezvous, nodes, token_file, trusted = options.meeting
    if nodes not in (None, 1) and rendezvous is None:
        raise UsageError(f"--nodes {nodes} needs --rendezvous HOST:PORT, where the hosts meet")
    if nodes is None and rendezvous is not None:
        raise UsageError(f"--rendezvous {rendezvous} needs --nodes, the number of hosts that meet there")
    progress = ProgressView()
    output = Output(progress.display.output, progress.display.streams)
    launch = replace(_launch(target, options), output=output)
    with tidied(launch.out, ours=options.out is None), reported(launch.out, progress) as listen:
        try:
            if world.source not in ("alone", "cordee"):
                result = _under(launch, world, listen)
            elif rendezvous is not None and nodes is not None:
                from cordee.runtime.rendezvous import Rendezvous
                from cordee.runtime.run import run_on_hosts

                result = run_on_hosts(launch, Rendezvous.parse(rendezvous, nodes, token_file, trusted), listen)
            else:
                launch.check()
                _hint(launch.workers)
                result = run(launch, listen)
        finally:
            progress.close()
    if world.rank == 0:
        if reached := listen.reached():
            print(plain(reached))
        _show(result, launch.out, listen.path)


def _launch(target: Target, options: Options) -> Launch:
    path = python_file(Path(target.path))
    if options.resume and options.out is None:
        raise UsageError("--resume needs --out, the folder of the run to go on with")
    workers = default_workers(options.device) if options.workers is None else options.workers
    return Launch(
        target,
        workers,
        Plan.parse(options.plan),
        options.out or default_folder(path.stem),
        options.resume,
        options.threads,
        parse_cores(options.cores) if options.cores else None,
        options.deadline,
        options.device,
        wording=Wording(more=_meeting_words(options), way_on=RUN not in os.environ),
    ).taking_over()


def _meeting_words(options: Options) -> tuple[str, ...]:
    """Where the hosts meet, as it was given."""
    rendezvous, nodes, token_file, trusted = options.meeting
    words = ["--rendezvous", rendezvous, "--nodes", str(nodes)] if rendezvous is not None else []
    words += ["--token-file", str(token_file)] if token_file is not None else []
    return (*words, *(["--trusted-network"] if trusted else []))


def _under(launch: Launch, world: World, listen: Listener) -> dict[str, object]:
    """Another launcher started this process: be one worker of that run."""
    from cordee.runtime.foreign import run_foreign

    if launch.target.kind == "script":
        raise UsageError(
            f"{world.source} started this process already: give it the script itself, without `cordee run`"
        )
    return run_foreign(launch, world, listen)


def _hint(workers: int) -> None:
    cores = len(usable_cores())
    if workers > cores:
        word = f"note: {workers} workers share {cores} cores; it works, but no faster than with one worker a core"
        print(word, file=sys.stderr)


def _show(result: dict[str, object], folder: Path, report: Path | None) -> None:
    for part in ("validation", "test"):
        metrics = result.get(part)
        if isinstance(metrics, dict) and metrics:
            print(plain(f"{part}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())))
    if named := best(result):
        print(plain(f"best: {named}"))
    if result.get("ended"):
        print(plain(f"ended: {result['ended']}"))
    times = result.get("time_s")
    if isinstance(times, dict) and times:
        parts = {
            part: share for part, share in shares(times).items() if part != "callbacks" or share >= LEAST_CALLBACKS
        }
        print("time: " + ", ".join(f"{part} {share:.0%}" for part, share in parts.items()))
    if result:
        print(plain(f"run: {folder}"))
    if report is not None:
        print(plain(f"report: {report}"))
