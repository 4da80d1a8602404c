"""What Cordée's step costs beside a loop written by hand with DDP: `python benchmarks/overhead.py`.

Both systems are alive at once, each with 2 workers of 1 thread, and take turns of a few steps: first the one, then the
other, then the other way round. The time of a turn runs from the first worker that begins to the last that ends; a pair
gives one ratio, DDP's time over Cordée's. Above 1, Cordée is the faster one. Both are started anew several times: where
a process happens to find its memory makes one start a few percent faster than another, with DDP against DDP too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peers.machine import described
from peers.pace import Conductor, processor_s
from peers.tasks import TASKS, Task

WORKERS = 2
PEERS = Path(__file__).parent / "peers"
RESULTS = Path(__file__).parent / "results" / "overhead.json"
ENDING_S = 60.0

Process = subprocess.Popen[bytes]


@dataclass
class Turns:
    """What was taken down of all pairs, by system, in seconds."""

    seconds: dict[str, list[float]]
    used_s: dict[str, float]
    """Of the processors, by all processes of the system, in its own turns."""
    used_while_waiting_s: dict[str, float]
    """The same in the other's turns."""


@contextlib.contextmanager
def cordee(task: str, path: str, folder: Path) -> Iterator[list[Process]]:
    """A run of Cordée, by its own command."""
    command = [sys.executable, "-m", "cordee", "train", str(PEERS / "job.py"), "--workers", str(WORKERS)]
    command += ["--threads", "1", "--out", str(folder / "run"), "--set", f"task={task}", "--set", f"turns={path}"]
    with _processes([(command, {})], folder / "said") as running:
        yield running


@contextlib.contextmanager
def ddp(task: str, path: str, name: str, folder: Path) -> Iterator[list[Process]]:
    """The peer's processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": WORKERS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    world["OMP_NUM_THREADS"] = 1
    command = [sys.executable, str(PEERS / "ddp.py"), task, path, name]
    environments = [{key: str(value) for key, value in {**world, "RANK": rank}.items()} for rank in range(WORKERS)]
    with _processes([(command, environment) for environment in environments], folder / f"said-{name}") as running:
        yield running


@contextlib.contextmanager
def _processes(commands: Sequence[tuple[list[str], dict[str, str]]], said: Path) -> Iterator[list[Process]]:
    """Start these; at the end they have gone by themselves, or are ended. What they say is shown if they fail."""
    with said.open("wb") as output:
        running = [
            subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=output)
            for command, environment in commands
        ]
    try:
        yield running
        codes = [process.wait(ENDING_S) for process in running]
        if any(codes):
            raise RuntimeError(f"{commands[0][0]} ended with the codes {codes}")
    except BaseException:
        print(said.read_text(errors="replace"), file=sys.stderr)
        raise
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
                process.wait(ENDING_S)


def measure(name: str, starts: int, pairs: int, *, control: bool) -> dict[str, Any]:
    """The figures of one task, from `pairs` pairs in each of `starts` starts."""
    turns = [take_turns(name, pairs, control=control) for _ in range(starts)]
    return summary(TASKS[name], turns)


def take_turns(name: str, pairs: int, *, control: bool) -> Turns:
    """One start of one task. With `control` a second group of DDP stands in for Cordée: its ratio should be 1."""
    task = TASKS[name]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="overhead-")))
        systems = contextlib.ExitStack()
        stack.enter_context(systems)
        conductor = stack.enter_context(Conductor(folder))  # left before the systems: they end when it has gone
        other = ddp(name, conductor.path, "cordee", folder) if control else cordee(name, conductor.path, folder)
        running = {
            "ddp": systems.enter_context(ddp(name, conductor.path, "ddp", folder)),
            "cordee": systems.enter_context(other),
        }
        everyone = [process for processes in running.values() for process in processes]
        conductor.gather(tuple(running), WORKERS, lambda: all(process.poll() is None for process in everyone))
        pids = {system: [process.pid for process in processes] for system, processes in running.items()}
        return _pairs(conductor, pids, task.chunk, pairs)


def _pairs(conductor: Conductor, pids: dict[str, list[int]], chunk: int, pairs: int) -> Turns:
    turns = Turns({"cordee": [], "ddp": []}, {"cordee": 0.0, "ddp": 0.0}, {"cordee": 0.0, "ddp": 0.0})
    for number in range(-2, pairs):  # two pairs to warm up
        order = ("cordee", "ddp") if number % 2 == 0 else ("ddp", "cordee")
        for system, waiting in zip(order, reversed(order), strict=True):
            before = {name: sum(map(processor_s, pids[name])) for name in order}
            seconds = conductor.turn(system, chunk)
            used = {name: sum(map(processor_s, pids[name])) - before[name] for name in order}
            if number >= 0:
                turns.seconds[system].append(seconds)
                turns.used_s[system] += used[system]
                turns.used_while_waiting_s[waiting] += used[waiting]
    return turns


def interval(ratios: Sequence[float], statistic: Any, draws: int = 10_000) -> list[float]:
    """The 95 % interval of a statistic of the pairs' ratios, by drawing the pairs again."""
    drawn = np.random.default_rng(0).choice(np.asarray(ratios), (draws, len(ratios)))
    return [round(float(value), 4) for value in np.percentile(statistic(drawn, axis=1), [2.5, 97.5])]


def summary(task: Task, starts: Sequence[Turns]) -> dict[str, Any]:
    """The figures of one task."""
    ddp_s = [seconds for turns in starts for seconds in turns.seconds["ddp"]]
    cordee_s = [seconds for turns in starts for seconds in turns.seconds["cordee"]]
    ratios = [theirs / ours for theirs, ours in zip(ddp_s, cordee_s, strict=True)]
    of_starts = np.array_split(ratios, len(starts))
    milliseconds = 1e3 / task.chunk
    used = {system: sum(turns.used_s[system] for turns in starts) for system in ("cordee", "ddp")}
    idle = {system: sum(turns.used_while_waiting_s[system] for turns in starts) for system in ("cordee", "ddp")}
    return {
        "parameters": sum(parameter.numel() for parameter in task.model().parameters()),
        "batch": task.batch,
        "pairs": len(ratios),
        "steps_a_turn": task.chunk,
        "ddp_step_ms": round(statistics.median(ddp_s) * milliseconds, 4),
        "cordee_step_ms": round(statistics.median(cordee_s) * milliseconds, 4),
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_median_95": interval(ratios, np.median),
        "ratio_mean": round(statistics.fmean(ratios), 4),
        "ratio_mean_95": interval(ratios, np.mean),
        "goal": task.goal,
        "ratio_median_of_each_start": [round(float(np.median(part)), 4) for part in of_starts],
        "processor_step_ms": {system: round(used[system] * milliseconds / len(ratios), 4) for system in used},
        "processor_share_while_waiting": {
            "cordee": round(idle["cordee"] / sum(ddp_s), 4),
            "ddp": round(idle["ddp"] / sum(cordee_s), 4),
        },
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def show(name: str, figures: dict[str, Any]) -> None:
    """One line."""
    spans = [f"{low:.4f} to {high:.4f}" for low, high in (figures["ratio_median_95"], figures["ratio_mean_95"])]
    used, idle = figures["processor_step_ms"], figures["processor_share_while_waiting"]
    print(
        f"{name:>5} {figures['ddp_step_ms']:>9.3f} {figures['cordee_step_ms']:>10.3f} {figures['ratio_median']:>8.4f}"
        f"   {spans[0]}   {spans[1]}   {used['ddp']:>8.3f} {used['cordee']:>8.3f}   {idle['cordee']:>7.2%}"
        f"   {figures['ratio_median_of_each_start']}",
        flush=True,
    )


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="6 pairs in one start, nothing is recorded")
    parser.add_argument("--starts", type=int, default=4, help="starts of each task (default 4)")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of each start (default 10)")
    parser.add_argument("--task", choices=sorted(TASKS), action="append", help="only these, nothing is recorded")
    parser.add_argument("--control", action="store_true", help="DDP against DDP, nothing is recorded")
    given = parser.parse_args()
    starts, pairs = (1, 6) if given.quick else (given.starts, given.pairs)
    result: dict[str, Any] = {
        **described(),
        "workers": f"{WORKERS} of 1 thread each",
        "ratio": "DDP's time over Cordée's, pair by pair: above 1, Cordée is faster",
        "tasks": {},
    }
    print(
        " task    DDP ms  Cordée ms    ratio   95 % of the median   95 % of the mean   processor ms: DDP, Cordée"
        "   Cordée idle   ratio of each start"
    )
    for name in given.task or TASKS:
        result["tasks"][name] = measure(name, starts, pairs, control=given.control)
        show(name, result["tasks"][name])
    if not (given.task or given.control) and starts * pairs >= 30:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
