"""How large the buckets of gradients should be between hosts: `python benchmarks/buckets.py`, as root.

Two emulated hosts with one worker of 1 thread each. Runs of Cordée that differ in `bucket_mb` alone are alive at once
and take turns of a few steps; a round gives each of them one turn, in an order that changes from round to round. A
round gives one ratio for each size: the time with buckets of 25 MiB over its own. Above 1, it is faster than they are.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.figures import written
from peers.hosts import HOSTS, emulated, give_speed
from peers.links import compared, least_s, order_of, steps_a_turn
from peers.machine import described
from peers.pace import Conductor
from peers.systems import HERE, process
from peers.tasks import TASKS

from cordee.twin.commands import RunRequest, commands
from cordee.twin.twin import Twin, missing

RESULTS = Path(__file__).parent / "results" / "buckets.json"
SIZES = ("25", "8", "4", "1")
SPEEDS = (1000, 100)
"""In Mbit/s."""
HEAD = {
    "hosts": f"{HOSTS} emulated on one machine, 1 worker of 1 thread each, no limits but those of their links",
    "ratio": "the time with buckets of 25 MiB over that with others, round by round: above 1, the others are faster",
}


@contextlib.contextmanager
def started(twin: Twin, task: str, folder: Path) -> Iterator[Conductor]:
    """One run for each size, each waiting for its turn."""
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(contextlib.ExitStack())
        conductor = stack.enter_context(Conductor(folder))
        stack.callback(give_speed, twin, None)
        running = []
        for place, size in enumerate(SIZES):
            given = {"task": task, "turns": conductor.path, "side": size}
            options = ["--threads", "1", "--plan", f"sync=allreduce,bucket_mb={size}"]
            options += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
            request = RunRequest("train", HERE / "job.py", folder / f"run-{size}", tuple(options), port=29400 + place)
            for host, command in commands(twin, request).items():
                running.append(processes.enter_context(process(command, {}, folder / f"said-{size}-{host}")))
        conductor.gather(SIZES, HOSTS, lambda: all(one.poll() is None for one in running))
        yield conductor


def measured(name: str, rounds: int) -> dict[str, Any]:
    """By speed and size: the time of a step, and how it compares with that of 25 MiB."""
    task, found = TASKS[name], dict[str, Any]()
    gradient = sum(one.numel() * one.element_size() for one in task.model().parameters())
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="buckets-"))
        twin = stack.enter_context(emulated())
        conductor = stack.enter_context(started(twin, name, Path(folder)))
        for size in SIZES:
            conductor.turn(size, task.chunk)
        for speed in SPEEDS:
            give_speed(twin, speed * 1e6)
            steps = steps_a_turn(task.chunk, least_s(gradient, HOSTS, speed * 1e6))
            spent: dict[str, list[float]] = {size: [] for size in SIZES}
            for number in range(-1, rounds):
                for size in order_of(SIZES, number):
                    seconds = conductor.turn(size, steps)
                    if number >= 0:
                        spent[size].append(seconds / steps)
            found[str(speed)] = {size: summary(spent, size) for size in SIZES}
            for size, one in found[str(speed)].items():
                line = f"{name} {speed:>5} Mbit/s {size:>3} MiB {one['step_ms']:>8.1f} ms {one['ratio_median']:.3f}"
                print(line, one["ratio_median_95"], flush=True)
    return found


def summary(spent: dict[str, list[float]], size: str) -> dict[str, Any]:
    """The figures of one size."""
    ratios = [first / own for first, own in zip(spent[SIZES[0]], spent[size], strict=True)]
    return {"step_ms": round(1e3 * sorted(spent[size])[len(spent[size]) // 2], 2), **compared(ratios)}


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--task", choices=("cnn", "gpt"), action="append")
    parser.add_argument("--record", type=Path, metavar="FILE", default=RESULTS)
    given = parser.parse_args()
    if lacking := missing():
        sys.exit(f"This benchmark needs emulated hosts, which cannot be made here: {'; '.join(lacking)}.")
    tasks = {name: measured(name, given.rounds) for name in given.task or ("gpt", "cnn")}
    given.record.write_text(written({**described("cordee"), **HEAD, "tasks": tasks}))


if __name__ == "__main__":
    main()
