"""How long a run stands still when parameter servers are killed: `python benchmarks/failover.py`.

Under `sync=server,servers=2` on 2 workers, in turn a first holder, a backup, one of each of different shards, or both
holders of one shard are killed (SIGKILL) at random instants, five times in each run. Measured is the time from the
signal to the next step that is committed, less the run's median step. Every run is compared with an undisturbed one of
one process: losses, parameters, order of the samples. The job is that of `recovery.py`.
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
from pathlib import Path
from typing import Any

import recovery
from peers.machine import described

RESULTS = Path(__file__).parent / "results" / "failover.json"
KINDS = {
    "first": ("first 0",),
    "backup": ("backup 1",),
    "one of each": ("first 1", "backup 0"),
    "both of a shard": ("first 0", "backup 0"),
}
BLOWS = 5


class Blows:
    """Listens to a run, and kills servers after five of its steps."""

    def __init__(self, seed: int) -> None:
        """Draw when; which ones goes in turn."""
        self._draw = random.Random(seed)
        self._steps = [3 + 8 * number + self._draw.randrange(4) for number in range(BLOWS)]
        self._kinds = [list(KINDS)[(seed * BLOWS + number) % len(KINDS)] for number in range(BLOWS)]
        self._pids: dict[str, int] = {}
        self.struck: list[tuple[str, float]] = []

    def __call__(self, event: Any) -> None:
        """Called with every event of the run."""
        if event.kind == "server" and event.what != "lost":
            self._pids[f"{event.what} {event.shard}"] = event.pid
        if event.kind == "step" and self._steps and event.step >= self._steps[0]:
            self._steps.pop(0)
            threading.Timer(self._draw.uniform(0.0, 0.03), self._strike, (self._kinds.pop(0),)).start()

    def _strike(self, kind: str) -> None:
        pids = [self._pids.pop(name, 0) for name in KINDS[kind]]
        if all(pids):  # or one of them is not there again yet
            self.struck.append((kind, time.time()))
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def measure(runs: int, folder: Path) -> dict[str, Any]:
    """All runs, and what they show together."""
    from cordee.core.plan import Plan

    recovery.train(folder / "alone", workers=1, listen=lambda event: None)
    stalls: dict[str, list[float]] = {kind: [] for kind in KINDS}
    same = True
    for seed in range(runs):
        blows, out = Blows(seed), folder / str(seed)
        events = recovery.train(out, workers=2, listen=blows, plan=Plan(sync="server", servers=2))
        steps = [event for event in events if event["event"] == "step"]
        usual_s = statistics.median(event["ms"] for event in steps) / 1e3
        for kind, at in blows.struck:
            after = [event["at"] for event in steps if event["at"] > at]
            if len(after) > 1:  # the step that was being committed may come first
                gap = max(late - early for early, late in zip([at, *after], after[:3], strict=False))
                stalls[kind].append(gap - usual_s)
        off = recovery.differences(out, folder / "alone")
        same &= off["same_order"] and not off["lost"] and not off["repeated"]
        same &= off["loss_off"] <= 1e-12 and off["tensor_off"] <= 1e-9
        print(seed, [kind for kind, _ in blows.struck], off, flush=True)
        shutil.rmtree(out)
    every = [one for kind in stalls.values() for one in kind]
    return {
        **described(),
        "kills": len(every),
        "all_the_same": same,
        "beyond_a_step_s": {"all": figures(every)} | {kind: figures(found) for kind, found in stalls.items()},
    }


def figures(stalls: list[float]) -> dict[str, float]:
    """Median and largest."""
    return {"median": round(statistics.median(stalls), 3), "max": round(max(stalls), 3)} if stalls else {}


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="four runs, nothing is recorded")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="failover-") as folder:
        result = measure(4 if options.quick else options.runs, Path(folder))
    print(json.dumps(result, indent=1))
    if not options.quick:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
