"""From the options of `train` and `run` to a launch, and its result on the screen."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cordee.cli.options import python_file
from cordee.core import interrupts
from cordee.core.machine import usable_cores
from cordee.core.text import plain
from cordee.core.times import shares
from cordee.core.world import World
from cordee.runtime.api import Options, launch
from cordee.runtime.spec import Target
from cordee.runtime.wording import Wording
from cordee.twin.enter import RUN
from cordee.watch.words import LEAST_CALLBACKS, best


def start(target: Target, options: Options) -> None:
    """Run it and show the result."""
    world = World() if options.engine else World.from_env()  # an engine is asked from here, whatever started us
    if world.is_foreign:
        interrupts.raise_at_once()  # it is for that launcher to stop all of its processes
    with contextlib.nullcontext() if world.is_foreign else interrupts.counted():
        given = options.launch(target, Wording(way_on=RUN not in os.environ))
        python_file(Path(target.path))
        if not world.is_foreign and given.nodes == 1 and given.engine is None:
            given.check()
            _hint(given.workers)
        result, heard = launch(given, ours=options.out is None)
        if world.rank == 0:
            if reached := heard.reached():
                print(plain(reached))
            _show(result.values, given.out, heard.path)


def _hint(workers: int) -> None:
    cores = len(usable_cores())
    if workers > cores:
        word = f"note: {workers} workers share {cores} cores; it works, but no faster than with one worker a core"
        print(word, file=sys.stderr)


def show_submitted(result: Mapping[str, object]) -> bool:
    """What Slurm was given: the script, or the number of the job; False: the run was not handed in, but has run."""
    if "script" in result:
        print(result["script"], end="")
    elif "submitted" in result:
        job = result["submitted"]
        print(plain(f"job {job} is submitted; scancel {job} ends it, with a checkpoint"))
        print(plain(f"output: {result['output']}"))
    return "script" in result or "submitted" in result


def _show(result: Mapping[str, object], folder: Path, report: Path | None) -> None:
    if show_submitted(result):
        return
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
