"""What a step costs when the network is slow: `python benchmarks/ddp_on_slow_links.py`, as root.

Two emulated hosts with one worker of 1 thread each, and no limit but that of their links: 1000, 100 and 10 Mbit/s, each
way. DDP by hand, Accelerate and Cordée with its all-reduce are alive at once and take turns of a few steps; a round
gives each of them one turn, in an order that changes from round to round. The time of a turn runs from the first worker
that begins to the last that ends. A round gives one ratio for each peer, its time over Cordée's: above 1, Cordée is the
faster one. Beside them stands the least time that any all-reduce of the same gradients takes on such links, and what
part of the step it is. What is left of the step is all that there is to gain without sending less.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.figures import written
from peers.hosts import HOSTS, cordee, emulated, give_speed, sent_bytes, started
from peers.links import OURS, Rounds, least_s, order_of, rounds_of, steps_a_turn, summary
from peers.machine import described
from peers.pace import Conductor
from peers.systems import PEERS
from peers.tasks import TASKS, Task

from cordee.core.errors import CordeeError
from cordee.twin.cluster import written_rate
from cordee.twin.twin import Twin, missing

RESULTS = Path(__file__).parent / "results" / "ddp_on_slow_links.json"
CHOSEN = ("cnn", "gpt")
SPEEDS = (1000, 100, 10)
"""In Mbit/s."""
BESIDE = ("ddp", "accelerate")
HEAD = {
    "hosts": f"{HOSTS} emulated on one machine, 1 worker of 1 thread each, no limits but those of their links",
    "speeds": "in Mbit/s, of each host's link, both ways at once",
    "least_ms": "2 (n - 1) / n of the gradient's bytes at the link's speed: no all-reduce of n hosts takes less",
    "link_busy": "least_ms over step_ms: at least this part of a step; headers and what is sent twice come on top",
    "sent_bytes_a_step": "by the host that sent most, with headers, as the link counted them",
    "ratio": "the peer's time over Cordée's, round by round: above 1, Cordée is faster",
    "interval": "95 %, by drawing the rounds again; all systems were started once",
}

Result = dict[str, Any]


class Band:
    """All systems on the hosts of a twin, waiting for their turns."""

    def __init__(self, task: str, peers: Sequence[str]) -> None:
        """Nothing is started yet."""
        self._task, self._systems = task, (OURS, *peers)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Band:
        """Start everything without limits, and compute a few steps."""
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        """End everything, and remove the hosts."""
        self._stack.__exit__(*error)

    def _start(self, stack: contextlib.ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="links-")))
        self._twin: Twin = stack.enter_context(emulated())
        processes = stack.enter_context(contextlib.ExitStack())
        self._conductor = stack.enter_context(Conductor(folder))  # left before the systems: they end when it has gone
        stack.callback(give_speed, self._twin, None)  # left first: what they still send does not take long
        words = (self._task, self._conductor.path, folder)
        running = [*processes.enter_context(cordee(self._twin, *words))]
        for name in self._systems[1:]:
            running += processes.enter_context(started(self._twin, name, *words))
        self._conductor.gather(self._systems, HOSTS, lambda: all(one.poll() is None for one in running))
        for system in self._systems:
            self._turn(system, TASKS[self._task].chunk)

    def measure(self, speed: float, steps: int, rounds: int) -> Rounds:
        """Turns at this speed in Mbit/s, after a round to warm up."""
        give_speed(self._twin, speed * 1e6)
        taken = Rounds()
        for number in range(-1, rounds):
            for system in order_of(self._systems, number):
                before = sent_bytes(self._twin)
                seconds = self._turn(system, steps)
                sent = max(now - before[host] for host, now in sent_bytes(self._twin).items())
                if number >= 0:
                    taken.add(system, seconds, sent)
        return taken

    def _turn(self, system: str, steps: int) -> float:
        try:
            return self._conductor.turn(system, steps)
        except OSError as error:  # a rank has gone, or takes too long
            speed = written_rate(self._twin.cluster.hosts[0].link)
            raise RuntimeError(f"{system} did not end its turn ({steps} steps, link={speed}): {error}") from error


def empty(task: Task) -> Result:
    """A task's part of the result, before anything was measured."""
    parameters = list(task.model().parameters())
    return {
        "parameters": sum(one.numel() for one in parameters),
        "gradient_bytes": sum(one.numel() * one.element_size() for one in parameters),
        "batch": task.batch,
        "speeds": {},
    }


def measure(given: argparse.Namespace, without: dict[str, str]) -> Result:
    """Measure and print what was asked for; a task that fails keeps what it has, and the result says so."""
    peers = [name for name in BESIDE if name not in without]
    modules = [PEERS[name].module for name in peers if PEERS[name].module != "torch"]
    result: Result = {
        **described("cordee", *modules),
        **HEAD,
        "peers": {name: PEERS[name].words for name in peers},
        "left_out": {**without},
        "tasks": {},
    }
    for name in given.task or CHOSEN:
        task = TASKS[name]
        figures = result["tasks"][name] = empty(task)
        show_task(name, figures)
        try:
            with Band(name, peers) as band:
                for speed in given.speed or SPEEDS:
                    least = least_s(figures["gradient_bytes"], HOSTS, speed * 1e6)
                    steps = steps_a_turn(task.chunk, least)
                    rounds = band.measure(speed, steps, given.pairs or rounds_of(least))
                    figures["speeds"][str(speed)] = summary(rounds, steps, least)
                    show(speed, figures["speeds"][str(speed)])
        except (CordeeError, RuntimeError, OSError, subprocess.SubprocessError) as error:
            result["left_out"][name] = f"failed: {error}"
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
    return result


def show_task(name: str, figures: Result) -> None:
    """What is trained, and what the columns are."""
    print(
        f"\n{name}: {figures['parameters']:,} parameters, {figures['gradient_bytes']:,} bytes of gradients,"
        f" batches of {figures['batch']}\n"
        f" Mbit/s  least ms      system    step ms  link busy   MB sent   ratio   95 % of the median  95 % of the mean",
        flush=True,
    )


def show(speed: int, figures: Result) -> None:
    """One line for each system."""
    for name, one in figures["systems"].items():
        line = f"{speed:>7} {figures['least_ms']:>9.1f} {name:>11} {one['step_ms']:>10.1f} {one['link_busy']:>10.1%}"
        line += f" {one['sent_bytes_a_step'] / 1e6:>9.2f}"
        if name != OURS:
            spans = [f"{low:.3f} to {high:.3f}" for low, high in (one["ratio_median_95"], one["ratio_mean_95"])]
            line += f" {one['ratio_median']:>7.3f}   {spans[0]:^18}  {spans[1]:^16}"
        print(line, flush=True)


def arguments() -> argparse.Namespace:
    """What the user wants, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=CHOSEN, action="append", help="only these")
    parser.add_argument("--speed", type=int, choices=SPEEDS, action="append", help="only these, in Mbit/s")
    parser.add_argument("--pairs", type=int, help="rounds of each speed; default: 12, or 6 where a step takes long")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help=f"where to write the result; a full run goes to {RESULTS.name}"
    )
    given = parser.parse_args()
    if given.pairs is not None and given.pairs < 1:
        parser.error(f"--pairs {given.pairs}: at least 1 is needed")
    if given.record is not None and not given.record.parent.is_dir():
        parser.error(f"--record {given.record}: there is no folder {given.record.parent}")
    if given.record is None and not (given.task or given.speed or given.pairs):
        given.record = RESULTS
    return given


def leave(number: int, frame: object) -> None:
    """End as with Ctrl-C, which ends all that was started and removes the hosts; asking again does not disturb that."""
    for asked in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(asked, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    """Measure, print and record."""
    given = arguments()
    if lacking := missing():
        sys.exit(f"This benchmark needs emulated hosts, which cannot be made here: {'; '.join(lacking)}.")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    without = {name: why for name in BESIDE if (why := PEERS[name].missing)}
    for name, why in without.items():
        print(f"Without {name}: {why}", file=sys.stderr)
    result = measure(given, without)
    if given.record is not None:
        given.record.write_text(written(result))
    if any(why.startswith("failed") for why in result["left_out"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
