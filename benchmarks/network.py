"""Training over slow links, Cordée's plans beside peers: `python benchmarks/network.py`, as root.

Two emulated hosts of 0.75 core each, with one worker each; their links have 1000, 100 or 10 Mbit/s, or no limit. A GPT
learns the characters of tinyshakespeare (`--data`, or CORDEE_TEST_DATA, names the folder of the text).

throughput    Samples per second of a GPT of 4.9 million parameters, as a share of the limit: what Cordée's all-reduce
              does just before, on two more hosts with unlimited links. In a round each contender is started once, and
              has one turn of some steps at each speed. Where a step takes 3 s, a cell has fewer steps and is marked.
time_to_loss  A GPT of 1.1 million parameters: the time until the validation loss is reached that one process reaches
              after one epoch, and the loss after as many samples. Evaluations are the same for all, and not timed.

The result is written after every cell; `--resume` continues it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from peers.contenders import PEERS, SYNCHRONOUS, Contender, Running, Stage, Turn, alone, ours
from peers.network_figures import (
    UNLIMITED,
    Cell,
    crossing,
    every_of,
    extrapolated_cell,
    loss_cell,
    steps_of,
    throughput_cell,
)
from peers.network_record import SPEEDS, Book, show_loss, show_tables, show_throughput
from peers.shakespeare import FILE, FOLDER, TASKS, TRAINED, data_folder

from cordee.core.errors import CordeeError
from cordee.twin.twin import missing

RESULTS = Path(__file__).parent / "results" / "network.json"
TABLES = ("throughput", "time_to_loss")
PLANS = (
    SYNCHRONOUS,
    "compress=bf16",
    "compress=int8",
    "compress=topk",
    "compress=powersgd",
    "sync=local,local_steps=8",
    "sync=local,local_steps=50",
    "sync=local,local_steps=50,outer=nesterov",
    "sync=server,servers=2",
)
WARM_UP = 12
"""Steps before the first turn, without a limit: PyTorch's PowerSGD compresses from the 11th on."""
LIMIT_STEPS = 10
"""Steps of the limit before each turn of a contender."""
SETTLING = 1
"""Steps after a change of the links' speed."""
LONGEST = 2
"""So many times the reference's steps may a contender take to reach its loss."""
LEAST_TURNS = 3
"""Evaluations before a training is cut off. The first turn does not count for the step time: PyTorch's PowerSGD sends
whole gradients in it."""
FAILURES = (CordeeError, RuntimeError, OSError, subprocess.SubprocessError)


# ---------------------------------------------------------------- throughput


class LimitLost(Exception):
    """The run that gives the limit has ended: the table cannot go on."""


def measure_throughput(stage: Stage, book: Book, given: argparse.Namespace, contenders: Sequence[Contender]) -> None:
    """Round after round, each contender once in each, in another order each time."""
    with Stage() as apart, apart.trained(ours(SYNCHRONOUS), "gpt") as limit:
        limit.turn(WARM_UP)
        for number in range(given.rounds):
            first = number * len(contenders) // given.rounds
            for contender in (*contenders[first:], *contenders[:first]):
                speeds = [speed for speed in given.speeds if not _has_turn(book, contender, speed, number)]
                if not speeds:
                    continue
                try:
                    with stage.trained(contender, "gpt") as running:
                        running.turn(WARM_UP)
                        for speed in speeds:
                            turn = {"round": number, **_measured(running, limit, speed, contender, given)}
                            turns = [*book.cell("throughput", contender, speed).get("turns", []), turn]
                            cell = throughput_cell(turns, TASKS["gpt"].batch, given.steps)
                            book.keep("throughput", contender, speed, cell)
                            show_throughput(contender.name, speed, cell)
                except FAILURES as error:
                    done = all(_has_turn(book, contender, speed, number) for speed in speeds)
                    (book.note if done else book.leave_out)("throughput", contender, error)


def _has_turn(book: Book, contender: Contender, speed: str, number: int) -> bool:
    return any(turn["round"] == number for turn in book.cell("throughput", contender, speed).get("turns", []))


def _measured(running: Running, limit: Running, speed: str, contender: Contender, given: argparse.Namespace) -> Cell:
    """One turn at this speed, just after one of the limit."""
    running.give(None if speed == UNLIMITED else float(speed))
    settling = running.turn(SETTLING)
    steps, short = steps_of(given.steps, given.rounds, contender.period, settling.seconds / SETTLING)
    try:
        bound = limit.turn(min(LIMIT_STEPS, given.steps))
    except FAILURES as error:
        raise LimitLost(f"the run that gives the limit was lost; --resume continues: {error}") from error
    turn = running.turn(steps)
    return {
        "steps": turn.steps,
        "seconds": round(turn.seconds, 4),
        "limit": round(TASKS["gpt"].batch * bound.steps / bound.seconds, 4),
        "short": short,
        "sent_bytes": turn.sent_bytes,
    }


# ---------------------------------------------------------------- time to loss


def measure_losses(stage: Stage, book: Book, given: argparse.Namespace, contenders: Sequence[Contender]) -> None:
    """Each contender at each speed, the fastest first: what it learns there stands in for what is cut off later."""
    reference = reference_of(book, given)
    target, equal = reference["loss"], reference["steps"]
    speeds = [speed for speed in given.speeds if speed != UNLIMITED]
    for number, speed in enumerate(speeds):
        for contender in contenders:
            if book.cell("time_to_loss", contender, speed):
                continue
            model = book.cell("time_to_loss", contender, speeds[0]) if number else None
            if number and not model:  # it has failed there
                continue
            every = every_of(given.every, contender.period, equal)
            cap_s = given.cell_minutes * 60 if model else float("inf")
            try:
                with stage.trained(contender, "small") as running:
                    running.give(float(speed))
                    curve, ended = learn(running.turn, target, equal, every, cap_s)
                    if ended or not model:
                        cell = loss_cell(curve, target, equal, LONGEST * equal)
                    else:
                        cell = extrapolated_cell(curve, model, target, equal, LONGEST * equal)
                    book.keep("time_to_loss", contender, speed, cell)
                    show_loss(contender.name, speed, cell)
            except FAILURES as error:
                done = bool(book.cell("time_to_loss", contender, speed))
                (book.note if done else book.leave_out)("time_to_loss", contender, error)


def reference_of(book: Book, given: argparse.Namespace) -> Cell:
    """One process, so many epochs: the validation loss that all others are to reach."""
    if "reference" not in book.result:
        steps = max(1, round(given.epochs * (TRAINED // TASKS["small"].batch)))
        with alone("small") as conductor:
            curve: list[list[float]] = []
            while not curve or curve[-1][0] < steps:
                done = int(curve[-1][0]) if curve else 0
                some = min(given.every, steps - done)
                seconds, loss = conductor.measured_turn("cordee", some)
                assert loss is not None
                curve.append([done + some, round((curve[-1][1] if curve else 0.0) + seconds, 3), round(loss, 5)])
        book.result["reference"] = {"steps": steps, "loss": curve[-1][2], "curve": curve}
        book.write()
    reference: Cell = book.result["reference"]
    print(f"\nthe reference reaches a validation loss of {reference['loss']} in {reference['steps']} steps", flush=True)
    return reference


def learn(
    turn: Callable[[int], Turn], target: float, equal: int, every: int, cap_s: float
) -> tuple[list[list[float]], bool]:
    """Train until the target is reached and as many samples are seen; also whether it got there before the cap."""
    curve: list[list[float]] = []
    done, seconds = 0, 0.0
    while True:
        boundary = equal if done < equal else LONGEST * equal
        taken = turn(min(every, boundary - done))
        assert taken.loss is not None
        done, seconds = done + taken.steps, seconds + taken.seconds
        curve.append([done, seconds, taken.loss])
        if done >= LONGEST * equal or (done >= equal and crossing(curve, target) is not None):
            return curve, True
        if seconds >= cap_s and len(curve) >= LEAST_TURNS:
            return curve, False


# ---------------------------------------------------------------- the command


def arguments() -> argparse.Namespace:
    """What the user wants, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", choices=TABLES, action="append", help="only these")
    parser.add_argument("--speeds", default=",".join(SPEEDS), help="in Mbit/s, or unlimited; default: %(default)s")
    parser.add_argument(
        "--plans", default="; ".join(PLANS), help="Cordée's, separated by semicolons; default: %(default)s"
    )
    parser.add_argument("--peers", default=", ".join(peer.name for peer in PEERS), help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=30, help="of a cell, all rounds together; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of the throughput; default: %(default)s")
    parser.add_argument("--epochs", type=float, default=1.0, help="of the reference; default: %(default)s")
    parser.add_argument("--every", type=int, default=25, help="steps between evaluations, at least; default: 25")
    parser.add_argument(
        "--cell-minutes", type=float, default=10.0, help="cut off slower trainings, and extrapolate; default: 10"
    )
    parser.add_argument("--data", type=Path, help=f"the folder of {FILE}; default: {FOLDER}, or ../shared/data")
    parser.add_argument("--quick", action="store_true", help="a few steps at 1000 Mbit/s, to see that all works")
    parser.add_argument("--resume", action="store_true", help="keep the cells that the record has")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help=f"default: {RESULTS.name}; with --quick, a new file"
    )
    given = parser.parse_args()
    if given.quick:
        quick = {"steps": 4, "rounds": 1, "epochs": 0.02, "every": 4, "speeds": f"{UNLIMITED},1000"}
        for name, value in quick.items():
            if getattr(given, name) == parser.get_default(name):
                setattr(given, name, value)
    _check(parser, given)
    return given


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Read lists, and refuse what cannot be measured."""
    given.table = given.table or TABLES
    given.speeds = [speed.strip() for speed in given.speeds.split(",")]
    for speed in given.speeds:
        if speed != UNLIMITED and not speed.replace(".", "", 1).isdigit():
            parser.error(f"--speeds {speed}: expected Mbit/s such as 100, or {UNLIMITED}")
    # The fastest first.
    given.speeds.sort(key=lambda speed: float("-inf") if speed == UNLIMITED else -float(speed))
    for name in ("steps", "rounds", "epochs", "every", "cell_minutes"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} {getattr(given, name)}: expected more than 0")
    names = [name.strip() for name in given.peers.split(",") if name.strip()]
    if unknown := sorted(set(names) - {peer.name for peer in PEERS}):
        parser.error(f"--peers {unknown[0]}: expected some of {', '.join(peer.name for peer in PEERS)}")
    try:
        plans = [ours(plan.strip()) for plan in given.plans.split(";") if plan.strip()]
    except CordeeError as error:
        parser.error(f"--plans: {error}")
    if SYNCHRONOUS not in {plan.name for plan in plans}:  # the limit
        plans.insert(0, ours(SYNCHRONOUS))
    given.contenders = [*plans, *(peer for peer in PEERS if peer.name in names)]
    if given.data is not None:
        os.environ[FOLDER] = str(given.data.resolve())
    if not (data_folder() / FILE).is_file():
        parser.error(f"{FILE} is not in {data_folder()}: name its folder with --data or {FOLDER}")
    if given.record is None:
        given.record = Path(tempfile.mkdtemp(prefix="network-")) / RESULTS.name if given.quick else RESULTS
    if not given.record.parent.is_dir():
        parser.error(f"--record {given.record}: there is no folder {given.record.parent}")


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """What all cells have in common; a run with other settings does not continue this one."""
    models = {
        name: {
            "parameters": sum(one.numel() for one in task.model().parameters()),
            "batch": task.batch,
            "optimizer": f"AdamW, lr {task.lr}",
        }
        for name, task in TASKS.items()
    }
    names = ("steps", "rounds", "epochs", "every", "cell_minutes")
    return {**{name: getattr(given, name) for name in names}, "models": models}


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
    present = [one for one in given.contenders if not one.missing]
    modules = sorted({peer.module for peer in PEERS if not peer.missing} - {"torch"})
    book = Book(given.record, settings_of(given), modules, resume=given.resume)
    for table in given.table:
        for contender in given.contenders:
            if contender.missing:
                book.leave_out(table, contender, contender.missing)
    with Stage() as stage:
        for table, measure in zip(TABLES, (measure_throughput, measure_losses), strict=True):
            if table in given.table:
                measure(stage, book, given, present)
    show_tables(book.result, given.table)
    print(f"\nwritten to {given.record}")


if __name__ == "__main__":
    main()
