"""Unequal hosts with balanced shares: `python benchmarks/balance.py`, as root.

Three emulated hosts with 0.7, 0.7 and 0.23 of a core and one worker each train a small convolutional network. In turn,
several rounds: the three at once without any communication, each on an equal share (their sum is what there is to
get); DistributedDataParallel by hand; Cordée with equal and with balanced shares. Samples per second of Cordée are
those of the steps of the second half of the run. Steps take a tenth of a second and more: the twin gives out a host's
share of a core every 20 ms, and a share of a step that fits into one such piece looks like that of a fast host.

Then one run in which the first host drops to a third of its speed and recovers. A change counts as compensated with the
first of three steps in a row that take at most 1.15 times the median of the last ten steps before the next change.

This file is also the job that is trained.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers.machine import described
from torch import nn, optim

import cordee

RESULTS = Path(__file__).parent / "results" / "balance.json"
LOOP = Path(__file__).parent / "peers" / "balance_loop.py"
HOSTS = "2 x cpu=0.7, 1 x cpu=0.23"
BATCH = 1200
PLANS = ("share=equal", "share=balanced")
NEAR = 1.15


def network() -> nn.Module:
    """About a third of a millisecond of a core per sample, forward and backward."""
    convolutions = (nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convolutions, nn.Flatten(), nn.Linear(64 * 64, 10))


def job(steps: int = 60) -> cordee.Job:
    """Digits, for so many steps."""
    return cordee.Job(
        preflight=False,
        model=network,
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: optim.SGD(params, lr=0.05, momentum=0.5),
        data=cordee.data.digits(),
        batch=BATCH,
        epochs=None,
        drop_last=True,
        stop=cordee.Stop(steps=steps),
    )


def peers(way: str, seconds: float) -> float:
    """Samples per second of three processes together."""
    from cordee.twin.cluster import Cluster
    from cordee.twin.registry import Registry
    from cordee.twin.twin import Twin

    twin = Twin.up(Cluster.parse(HOSTS), Registry())
    try:
        names, running = twin.cluster.names, []
        meeting = {"MASTER_ADDR": names[0], "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}
        for rank, host in enumerate(names):
            command = twin.command(host, [sys.executable, str(LOOP), way, str(seconds)])
            world = {"RANK": str(rank), "WORLD_SIZE": str(len(names)), "OMP_NUM_THREADS": "1", **meeting}
            running.append(subprocess.Popen(command, env=os.environ | world, stdout=subprocess.PIPE, text=True))
        rates = [float(one.communicate(timeout=60 + 20 * seconds)[0].split()[-1]) for one in running]
    finally:
        twin.down()
    return sum(rates)


def run(plan: str, steps: int, schedule: str = "") -> list[Any]:
    """All events of a run of Cordée, which has to be what one process would have trained."""
    from cordee.core.eventlog import read_events

    with tempfile.TemporaryDirectory(prefix="balance-") as folder:
        out = Path(folder) / "run"
        asked = ["--plan", plan, "--out", str(out), "--set", f"steps={steps}", "--threads", "1"]
        asked += ["--schedule", schedule] if schedule else []
        command = [sys.executable, "-m", "cordee", "twin", "run", __file__, "--hosts", HOSTS, *asked]
        subprocess.run(command, check=True, capture_output=True, timeout=900)
        subprocess.run([sys.executable, "-m", "cordee", "audit", str(out)], check=True, capture_output=True, timeout=60)
        return list(read_events(out / "events.jsonl"))


def rate(events: list[Any]) -> float:
    """Samples per second of the second half."""
    steps = [event for event in events if event.kind == "step"]
    steps = steps[len(steps) // 2 :]
    return float(1e3 * sum(one.samples for one in steps) / sum(one.ms for one in steps))


def compensated(events: list[Any]) -> list[int | None]:
    """For each change of a host's speed, how many steps until its effect was compensated."""
    steps = [event for event in events if event.kind == "step"]
    changes = [event.time for event in events if event.kind == "fault"]
    found: list[int | None] = []
    for begins, ends in zip(changes, [*changes[1:], float("inf")], strict=True):
        ms = [one.ms for one in steps if begins <= one.at < ends]
        limit = NEAR * statistics.median(ms[-10:])
        near = [at for at in range(len(ms) - 2) if max(ms[at : at + 3]) <= limit]
        found.append(near[0] if near else None)
    return found


def measure(rounds: int, steps: int, seconds: float) -> dict[str, Any]:
    """All of it."""
    rates: dict[str, list[float]] = {}
    for number in range(rounds):
        for way in ("alone", "ddp"):
            rates.setdefault(way, []).append(peers(way, seconds))
        for plan in PLANS:
            rates.setdefault(plan, []).append(rate(run(plan, steps)))
        print(number, {name: round(found[-1], 1) for name, found in rates.items()}, flush=True)
    rows = {}
    for name, found in rates.items():
        ratios = sorted(own / whole for own, whole in zip(found, rates["alone"], strict=True))
        parts = [round(one, 3) for one in (statistics.median(ratios), ratios[0], ratios[-1])]
        rows[name] = {"samples_per_s": round(statistics.median(found), 1), "of_the_sum": parts}
    schedule = f"at step {steps}: set a cpu=0.23; at step {2 * steps}: set a cpu=0.7"
    events = run("share=balanced", 3 * steps, schedule)
    changes = [[one.step, one.after, one.reason] for one in events if one.kind == "shares"]
    return {"throughput": rows, "steps_until_compensated": compensated(events), "changes": changes}


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round, recorded only with --record")
    parser.add_argument("--record", type=Path, metavar="FILE")
    options = parser.parse_args()
    rounds, steps, seconds = (1, 12, 2.0) if options.quick else (options.rounds, 60, 15.0)
    result = {**described(), "emulated": HOSTS, "batch": BATCH, "rounds": rounds, "steps": steps}
    result |= measure(rounds, steps, seconds)
    print(json.dumps(result, indent=1))
    record = options.record or (None if options.quick else RESULTS)
    if record is not None:
        record.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
