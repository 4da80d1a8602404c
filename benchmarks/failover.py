"""How long a run stands still when parameter servers and workers are killed: `python benchmarks/failover.py`.

Under `sync=server,servers=2` on 4 workers, five times in each run one of these is killed (SIGKILL) at a random instant:
a first holder, a backup, one of each of different shards, both holders of one shard, a worker, or a worker that has
sent a part of a push. In one run of four, lost workers are replaced. Measured is the time from the signal to the next
step that is committed, less the run's median step. Every run is compared with an undisturbed one of one process:
losses, parameters, order of the samples. An update that was lost or applied twice would change them.

Another run of four has `mode=async`, whose losses are not those of one process: there the record is audited. Each part
of each step was pushed once, and the servers have made as many updates. The job is that of `recovery.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import recovery
from peers.machine import described

import cordee

RESULTS = Path(__file__).parent / "results" / "failover.json"
WORKERS, LEAST = 4, 2
"""At the start; with so few left, none of them is killed."""
MID_PUSH = "worker in mid-push"
KINDS = {
    "first": ("first 0",),
    "backup": ("backup 1",),
    "one of each": ("first 1", "backup 0"),
    "both of a shard": ("first 0", "backup 0"),
    "worker": ("worker",),
    MID_PUSH: ("worker",),
}
BLOWS = 5
PLANS: tuple[dict[str, Any], ...] = ({}, {"replace": True}, {}, {"mode": "async"})
"""In turn, what the plan of a run says beside the servers."""


def job(orders: str = "") -> cordee.Job:
    """That of `recovery.py`; a worker whose process number is a file in the folder `orders` dies in its next push."""
    if orders:
        obey(Path(orders))
    return recovery.job()


def obey(orders: Path) -> None:
    """Where there is an order, send a part of the next push, write down when, and be killed."""
    from cordee.group.bulk import Link, bytes_of
    from cordee.group.wire import pack
    from cordee.sync.server.messages import Push

    send, draw = Link.send, random.Random()

    def send_or_die(self: Link, message: object, tensors: Sequence[Any] = ()) -> None:
        if isinstance(message, Push) and (order := orders / str(os.getpid())).exists():
            whole = b"".join([pack(message), *map(bytes, bytes_of(tensors))])
            self._sock.sendall(whole[: draw.randrange(1, len(whole))])
            order.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        send(self, message, tensors)

    Link.send = send_or_die  # type: ignore[method-assign]


class Blows:
    """Listens to a run, and kills servers and workers after five of its steps."""

    def __init__(self, seed: int, orders: Path) -> None:
        """Draw when; which ones goes in turn."""
        self._draw, self._orders = random.Random(seed), orders
        self._steps = [3 + 8 * number + self._draw.randrange(4) for number in range(BLOWS)]
        self._kinds = [list(KINDS)[(seed * BLOWS + number) % len(KINDS)] for number in range(BLOWS)]
        self._servers: dict[str, int] = {}
        self._workers: dict[int, int] = {}
        self._struck: list[tuple[str, float, int]] = []

    def __call__(self, event: Any) -> None:
        """Called with every event of the run."""
        if event.kind == "server" and event.what != "lost":
            self._servers[f"{event.what} {event.shard}"] = event.pid
        if event.kind == "worker":
            self._workers[event.worker] = event.pid
        if event.kind == "step" and self._steps and event.step >= self._steps[0]:
            self._steps.pop(0)
            threading.Timer(self._draw.uniform(0.0, 0.03), self._strike, (self._kinds.pop(0),)).start()

    def _strike(self, kind: str) -> None:
        pids = [self._worker() if name == "worker" else self._servers.pop(name, 0) for name in KINDS[kind]]
        if not all(pids):  # one of them is not there again yet
            return
        self._struck.append((kind, time.time(), pids[0]))
        if kind == MID_PUSH:
            (self._orders / str(pids[0])).touch()
            return
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def _worker(self) -> int:
        """A worker that is killed now; 0 if too few are left."""
        if len(self._workers) <= LEAST:
            return 0
        return self._workers.pop(self._draw.choice(sorted(self._workers)))

    def struck(self) -> list[tuple[str, float]]:
        """What was killed, and when; a worker in mid-push has written that down itself, unless the run ended before."""
        found = []
        for kind, at, pid in self._struck:
            order = (self._orders / str(pid)).read_text() if kind == MID_PUSH else str(at)
            found += [(kind, float(order))] if order else []
        return found


def measure(runs: int, folder: Path) -> dict[str, Any]:
    """All runs, and what they show together."""
    from cordee.core.plan import Plan

    recovery.train(folder / "alone", workers=1, listen=lambda event: None)
    found: dict[str, list[tuple[bool, float | None]]] = {kind: [] for kind in KINDS}
    joined = 0
    for seed in range(runs):
        out, more = folder / str(seed), PLANS[seed % len(PLANS)]
        (orders := folder / f"orders-{seed}").mkdir()
        blows, plan = Blows(seed, orders), Plan(sync="server", servers=2, **more)
        events = recovery.train(out, workers=WORKERS, listen=blows, plan=plan, file=__file__, orders=str(orders))
        off, struck = recovery.differences(out, folder / "alone"), blows.struck()
        right = off["same_order"] and not off["lost"] and not off["repeated"]
        if "mode" in more:
            right &= audit(events)
        else:
            right &= off["loss_off"] <= 1e-12 and off["tensor_off"] <= 1e-9
        for kind, at in struck:
            found[kind].append((right, None if "mode" in more else stall(events, at)))
        joined += sum(event["event"] == "joined" for event in events)
        print(seed, more, [kind for kind, _ in struck], off, "as it should be" if right else "WRONG", flush=True)
        shutil.rmtree(out)
    every = [one for each in found.values() for one in each]
    by_kind = {kind: figures(each) for kind, each in found.items()}
    return {**described(), "workers": WORKERS, "replaced": joined, **figures(every), "by_kind": by_kind}


def audit(events: list[dict[str, Any]]) -> bool:
    """Whether each part of each step was pushed once, and the servers have made as many updates."""
    items = [(step, part) for one in events if one["event"] == "window" for _, step, part in one["items"]]
    version = max(one["version"] for one in events if one["event"] == "pushes")
    return len(set(items)) == len(items) == version


def stall(events: list[dict[str, Any]], at: float) -> float | None:
    """How much longer than a step it took until the next one was committed; None at the end of a run."""
    steps = [event for event in events if event["event"] == "step"]
    after = [event["at"] for event in steps if event["at"] > at]
    if len(after) < 2:  # the step that was being committed may come first
        return None
    gap = max(late - early for early, late in zip([at, *after], after[:3], strict=False))
    return float(gap - statistics.median(event["ms"] for event in steps) / 1e3)


def figures(kills: Sequence[tuple[bool, float | None]]) -> dict[str, Any]:
    """How many, how many of them in runs that are as they should be, and how long they took."""
    stalls = [one for _, one in kills if one is not None]
    found = {"kills": len(kills), "as_it_should_be": sum(right for right, _ in kills)}
    if stalls:
        found |= {"median_s": round(statistics.median(stalls), 3), "max_s": round(max(stalls), 3)}
    return found


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=44)
    parser.add_argument("--quick", action="store_true", help="four runs, nothing is recorded")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="failover-") as folder:
        result = measure(4 if options.quick else options.runs, Path(folder))
    print(json.dumps(result, indent=1))
    if not options.quick:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
