"""Training over slow links, Cordée's plans beside peers: `python benchmarks/network.py`, as root.

Two emulated hosts of 0.75 core each, with one worker each; their links have 1000, 100 or 10 Mbit/s. A GPT learns the
characters of tinyshakespeare (`--data`, or CORDEE_TEST_DATA, names the folder of the text).

throughput    Samples per second of a GPT of 4.9 million parameters, as a share of the limit: what Cordée's all-reduce
              does just before and after, on two more hosts with unlimited links. Each contender is started once, and
              `sync=auto` once for each speed. A cell whose steps take seconds has fewer of them, and is marked.
time_to_loss  A GPT of 1.1 million parameters: the time until the validation loss is reached that synchronous training
              reaches after one epoch, and the loss after as many samples. Where the link does not change what a step
              does, losses are measured once, on fast hosts; the time is composed of steps and this link's step time.
              Plain `sync=auto` is trained at each speed. Evaluations are the same for all, and not timed.
reaction      Only with `--table reaction`: after how many steps `sync=auto` sends gradients by another way when links
              drop from 1000 to 20 Mbit/s, and when they come back; step times as forecast and as measured.
trained       Only with `--table trained`: time to loss of `sync=auto` and of the fixed plan and the peer that were the
              fastest at each speed, each trained there, `--rounds` times, in another order in each round. The loss is
              that of the record: needs `--resume`, or time_to_loss before it. 3 rounds take about 30 minutes:
              `--table trained --rounds 3 --resume --minutes 32`.

The result is written after every cell. After `--minutes` no contender is started; `--resume` continues. With `--again`
it measures anew what the record has of these tables, plans, peers and speeds, and writes down when.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers.contenders import PEERS, SYNCHRONOUS, Stage, ours
from peers.network_figures import UNLIMITED
from peers.network_measure import TABLES, TableLost
from peers.network_record import SPEEDS, Book, Clock, show_tables
from peers.shakespeare import EPOCH, FILE, FOLDER, TASKS, data_folder

from cordee.core.errors import CordeeError
from cordee.twin.twin import missing

RESULTS = Path(__file__).parent / "results" / "network.json"
CELLS = ("throughput", "time_to_loss")
"""The tables of contenders and speeds."""
PLANS = (
    SYNCHRONOUS,
    "sync=auto",
    "sync=auto,faithful=same",
    "compress=bf16",
    "compress=int8",
    "compress=onebit",
    "compress=topk",
    "compress=powersgd",
    "sync=local,local_steps=8",
    "sync=local,local_steps=8,compress=int8",
    "sync=local,local_steps=8,compress=onebit",
    "sync=local,local_steps=16,compress=onebit",
    "sync=local,local_steps=50",
    "sync=local,local_steps=50,outer=nesterov",
    "sync=server,servers=2",
)


def arguments() -> argparse.Namespace:
    """What the user wants, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", choices=TABLES, action="append", help="only these; default: the first two")
    parser.add_argument("--speeds", default=",".join(SPEEDS), help="in Mbit/s, or unlimited; default: %(default)s")
    parser.add_argument(
        "--plans", default="; ".join(PLANS), help="Cordée's, separated by semicolons; default: %(default)s"
    )
    parser.add_argument("--peers", default=", ".join(peer.name for peer in PEERS), help="default: %(default)s")
    parser.add_argument(
        "--minutes", type=float, default=52.0, help="no start after these, which may take 3 more; default: 52"
    )
    parser.add_argument("--steps", type=int, default=30, help="of a cell of the throughput; default: %(default)s")
    parser.add_argument("--learn", type=int, default=EPOCH, help="steps of synchronous training; default: one epoch")
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations, at least; default: 20")
    parser.add_argument("--cap-minutes", type=float, default=3.0, help="of a training at one speed; default: 3")
    parser.add_argument("--data", type=Path, help=f"the folder of {FILE}; default: {FOLDER}, or ../shared/data")
    parser.add_argument("--quick", action="store_true", help="a few steps at 1000 Mbit/s, to see that all works")
    parser.add_argument("--rounds", type=int, default=1, help="of the table trained; default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="keep the cells that the record has")
    parser.add_argument("--again", action="store_true", help=f"with --resume: all but those of {SYNCHRONOUS} anew")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help=f"default: {RESULTS.name}; with --quick, a new file"
    )
    given = parser.parse_args()
    if given.quick:
        for name, value in {"steps": 4, "learn": 8, "every": 4, "speeds": "1000"}.items():
            if getattr(given, name) == parser.get_default(name):
                setattr(given, name, value)
    _check(parser, given)
    return given


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Read lists, and refuse what cannot be measured."""
    given.table = given.table or CELLS
    given.speeds = [speed.strip() for speed in given.speeds.split(",")]
    for speed in given.speeds:
        if speed != UNLIMITED and not speed.replace(".", "", 1).isdigit():
            parser.error(f"--speeds {speed}: expected Mbit/s such as 100, or {UNLIMITED}")
    # The fastest first.
    given.speeds.sort(key=lambda speed: float("-inf") if speed == UNLIMITED else -float(speed))
    for name in ("minutes", "steps", "learn", "every", "cap_minutes", "rounds"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} {getattr(given, name)}: expected more than 0")
    names = [name.strip() for name in given.peers.split(",") if name.strip()]
    if unknown := sorted(set(names) - {peer.name for peer in PEERS}):
        parser.error(f"--peers {unknown[0]}: expected some of {', '.join(peer.name for peer in PEERS)}")
    try:
        plans = [ours(plan.strip()) for plan in given.plans.split(";") if plan.strip()]
    except CordeeError as error:
        parser.error(f"--plans: {error}")
    plans = [ours(SYNCHRONOUS), *(plan for plan in plans if plan.name != SYNCHRONOUS)]  # the others are measured by it
    given.contenders = [*plans[:3], *(peer for peer in PEERS if peer.name in names), *plans[3:]]
    given.present = [one for one in given.contenders if not one.missing]
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
            "epoch_steps": len(task.data()[0]) // task.batch,
            "optimizer": f"AdamW, lr {task.lr}",
        }
        for name, task in TASKS.items()
    }
    return {**{name: getattr(given, name) for name in ("steps", "learn", "every", "cap_minutes")}, "models": models}


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
    given.clock = Clock(given.minutes)
    modules = sorted({peer.module for peer in PEERS if not peer.missing} - {"torch"})
    book = Book(given.record, settings_of(given), modules, resume=given.resume)
    for contender in given.contenders:
        for table in CELLS if given.again and contender.name != SYNCHRONOUS else ():
            if table in given.table:
                book.forget(table, contender, given.speeds)
        for table in CELLS if contender.missing else ():
            if table in given.table and contender.name not in book.result[table]:
                book.leave_out(table, contender, contender.missing)
    with Stage() as stage:
        for table in given.table:
            try:
                TABLES[table](stage, book, given)
            except TableLost as error:
                print(f"{table}: {error}", file=sys.stderr, flush=True)
    show_tables(book.result, given.table)
    given.clock.tell()
    print(f"\nwritten to {given.record}")


if __name__ == "__main__":
    main()
