"""What Cordée's step costs beside other ways to train with data parallelism: `python benchmarks/overhead.py`.

Cordée meets one peer at a time. Both are alive at once, each with 2 workers of 1 thread, and take turns of a few
steps: first the one, then the other, then the other way round; whoever waits sleeps in a blocking read. The time of a
turn runs from the first worker that begins to the last that ends; a pair gives one ratio, the peer's time over
Cordée's. Above 1, Cordée is the faster one. Both are started anew several times: where a process happens to find its
memory makes one start a few percent faster than another, with DDP against DDP too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.figures import Turns, summary, written
from peers.machine import described
from peers.pace import Conductor
from peers.pairs import take_pairs
from peers.systems import PEERS, WORKERS, Peer, cordee, started
from peers.tasks import TASKS, Task

RESULTS = Path(__file__).parent / "results" / "overhead.json"
PAIRS = 10
HEAD = {
    "workers": f"{WORKERS} of 1 thread each",
    "ratio": "the peer's time over Cordée's, pair by pair: above 1, Cordée is faster",
    "interval": "95 %, by drawing the pairs again; how starts differ is in ratio_median_of_each_start",
    "processor_share_while_waiting": "of one core, by all processes of a side while the other one computes",
}

Result = dict[str, Any]


def take_turns(name: str, peer: Peer, pairs: int, *, control: bool) -> Turns:
    """One start of one task. With `control` a second group of the peer stands in for Cordée: its ratio should be 1."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="overhead-")))
        systems = contextlib.ExitStack()
        stack.enter_context(systems)
        conductor = stack.enter_context(Conductor(folder))  # left before the systems: they end when it has gone
        path = conductor.path
        ours = started(peer, name, path, "cordee", folder) if control else cordee(name, path, folder)
        running = {
            "peer": systems.enter_context(started(peer, name, path, "peer", folder)),
            "cordee": systems.enter_context(ours),
        }
        conductor.gather(tuple(running), WORKERS, lambda: all(one.poll() is None for one in running.values()))
        pids = {side: process.pid for side, process in running.items()}
        return take_pairs(conductor, pids, TASKS[name].chunk, pairs)


def empty(task: Task) -> Result:
    """A task's part of the result, before any peer was measured."""
    return {
        "parameters": sum(parameter.numel() for parameter in task.model().parameters()),
        "batch": task.batch,
        "steps_a_turn": task.chunk,
        "goal": task.goal,
        "peers": {},
    }


def measure(given: argparse.Namespace, missing: dict[str, str]) -> Result:
    """Measure and print what was asked for; a peer that fails is left out, and the result says so."""
    chosen = [name for name in given.peer or PEERS if name not in missing]
    result: Result = {
        **HEAD,
        "peers": {name: PEERS[name].words for name in chosen},
        "left_out": {**missing},
        "tasks": {},
    }
    for task in given.task or TASKS:
        figures = result["tasks"][task] = empty(TASKS[task])
        for name in chosen:
            peer = PEERS[name]
            if peer.goals and task not in peer.goals:
                continue
            starts = given.starts or (1 if given.quick else peer.starts)
            pairs = given.pairs or (6 if given.quick else PAIRS)
            about = described("cordee", *([] if peer.module == "torch" else [peer.module]))
            try:
                turns = [take_turns(task, peer, pairs, control=given.control) for _ in range(starts)]
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                result["left_out"][f"{name}, {task}"] = f"failed: {error}"
                print(f"{task:>5} {name:>10} failed: {error}", file=sys.stderr, flush=True)
                continue
            goal = {"goal": peer.goals[task]} if peer.goals else {}
            figures["peers"][name] = {**about, **goal, **summary(TASKS[task].chunk, turns)}
            show(task, name, figures["peers"][name])
    return result


def merged(old: Result, new: Result) -> Result:
    """The recorded result with these entries in place of its own; all others keep their date and versions."""
    result: Result = {**old, **HEAD, "peers": {**old["peers"], **new["peers"]}, "tasks": dict(old["tasks"])}
    for task, part in new["tasks"].items():
        before = old["tasks"].get(task, {"peers": {}})
        result["tasks"][task] = {**part, "peers": {**before["peers"], **part["peers"]}}
    there = {name for part in result["tasks"].values() for name in part["peers"]}
    there |= {f"{name}, {task}" for task, part in result["tasks"].items() for name in part["peers"]}
    reasons = {**old["left_out"], **new["left_out"]}
    result["left_out"] = {what: why for what, why in reasons.items() if what not in there}
    return result


def write(result: Result) -> None:
    """Record the result."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(written(result))


def show_head(peers: Sequence[str]) -> None:
    """Who takes part, and what the columns are."""
    for name in peers:
        print(f"{name}: {PEERS[name].words}.")
    print(
        f"\n{'':52}{'95 % of':^18}{'95 % of':^18}{'processor ms':^19}{'while waiting':^17}\n"
        f" task       peer   peer ms  Cordée ms    ratio    {'the median':^18}{'the mean':^18}{'peer':>9}{'Cordée':>10}"
        f"{'peer':>9}{'Cordée':>8}   ratio of each start",
        flush=True,
    )


def show(task: str, peer: str, figures: Result) -> None:
    """One line."""
    spans = [f"{low:.3f} to {high:.3f}" for low, high in (figures["ratio_median_95"], figures["ratio_mean_95"])]
    used, idle = figures["processor_step_ms"], figures["processor_share_while_waiting"]
    print(
        f"{task:>5} {peer:>10} {figures['peer_step_ms']:>9.3f} {figures['cordee_step_ms']:>10.3f}"
        f" {figures['ratio_median']:>8.3f}    {spans[0]:^18}{spans[1]:^18}{used['peer']:>9.2f}{used['cordee']:>10.2f}"
        f"{idle['peer']:>9.1%}{idle['cordee']:>8.1%}   {figures['ratio_median_of_each_start']}",
        flush=True,
    )


def arguments() -> argparse.Namespace:
    """What the user wants, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=sorted(TASKS), action="append", help="only these; recorded only with --merge")
    parser.add_argument("--peer", choices=list(PEERS), action="append", help="only these; recorded only with --merge")
    parser.add_argument("--merge", action="store_true", help="record a selection, beside what is recorded already")
    parser.add_argument("--quick", action="store_true", help="6 pairs in one start, nothing is recorded")
    parser.add_argument("--starts", type=int, help="starts of each pair of systems, nothing is recorded")
    parser.add_argument("--pairs", type=int, help="pairs of turns of each start, nothing is recorded")
    parser.add_argument("--control", action="store_true", help="each peer against itself, nothing is recorded")
    given = parser.parse_args()
    if given.merge and (given.quick or given.starts or given.pairs or given.control):
        parser.error("--merge records what a full run would measure: it goes with --task and --peer only")
    if given.merge and "left_out" not in (json.loads(RESULTS.read_text()) if RESULTS.exists() else {}):
        parser.error(f"--merge adds to a recorded full run, and {RESULTS.name} is not one of this form: run without it")
    return given


def main() -> None:
    """Measure, print and record."""
    given = arguments()
    missing = {name: why for name in given.peer or PEERS if (why := PEERS[name].missing)}
    for name, why in missing.items():
        print(f"Without {name}: {why}", file=sys.stderr)
    show_head([name for name in given.peer or PEERS if name not in missing])
    result = measure(given, missing)
    selected = given.task or given.peer or given.quick or given.starts or given.pairs or given.control
    if given.merge:
        write(merged(json.loads(RESULTS.read_text()), result))
    elif not selected:
        write(result)
    if any(why.startswith("failed") for why in result["left_out"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
