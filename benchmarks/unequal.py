"""A worker of a third of the speed: who waits for it, and what it learns: `python benchmarks/unequal.py`, as root.

A small convolutional network is trained on the package's digits, under each plan in turn, several rounds, in two
settings. `hosts`: two emulated hosts with 0.6 and 0.2 of a core, and a third one that only holds parameters: under
`sync=server` the server is there, and its backup on the faster host. `devices`: two workers on this machine, whose
forward passes wait for 20 and 60 ms, as for devices of different speed. Samples per second are those of the run's steps
from the second epoch on. The loss is that of the validation set at the end; beside each plan stands its distance from
synchronous all-reduce. Synchronous plans have equal shares, so that all wait for the slow worker.

This file is also the job that is trained.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from peers.machine import described
from torch import Tensor, nn

import cordee

RESULTS = Path(__file__).parent / "results" / "unequal.json"
NAP_MS = 20
HOSTS = "1 x cpu=0.6, 1 x cpu=0.2"
STORES = "1 x cpu=0.6 workers=0"
"""One more host, under plans with parameter servers."""
PLANS = (
    "sync=allreduce",
    "sync=server",
    "sync=server,mode=async",
    "sync=server,mode=stale,staleness=4",
    "sync=local,local_steps=8",
)


class Nap(nn.Module):
    """Takes so long in each forward pass of the training."""

    def __init__(self, seconds: float) -> None:
        """As a device of some speed."""
        super().__init__()
        self._seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers, later."""
        if self.training and not torch.compiler.is_compiling():
            time.sleep(self._seconds)
        return x


def job(epochs: int = 6, nap_ms: float = 0.0) -> cordee.Job:
    """Digits; the second worker naps three times as long as the first."""
    seconds = nap_ms / 1e3 * (3 if cordee.World.from_env().rank == 1 else 1)
    return cordee.Job(
        preflight=False,
        model=lambda: nn.Sequential(
            Nap(seconds),
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 64, 10),
        ),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.5),
        data=cordee.data.digits(),
        batch=100,
        epochs=epochs,
        metrics={"accuracy": cordee.metrics.accuracy},
    )


def train(setting: str, plan: str, epochs: int) -> dict[str, float]:
    """One run: samples per second, and the validation loss."""
    from cordee.core.eventlog import read_events
    from cordee.core.events import StepEvent

    with tempfile.TemporaryDirectory(prefix="unequal-") as folder:
        out = Path(folder) / "run"
        hosts = f"{HOSTS}, {STORES}" if plan.startswith("sync=server") else HOSTS
        how = {
            "hosts": ("twin", "run", __file__, "--hosts", hosts),
            "devices": ("train", __file__, "--workers", "2", "--set", f"nap_ms={NAP_MS}"),
        }[setting]
        asked = ("--plan", plan, "--out", str(out), "--set", f"epochs={epochs}", "--threads", "1")
        command = [sys.executable, "-m", "cordee", *how, *asked]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        result = json.loads((out / "result.json").read_text())
        steps = [event for event in read_events(out / "events.jsonl") if isinstance(event, StepEvent) and event.epoch]
        rate = sum(one.samples for one in steps) / sum(one.ms for one in steps) * 1e3
        audit = {name: result[name] for name in ("samples_lost", "samples_repeated", "order_sha256")}
        return {"rate": rate, "loss": result["validation"]["loss"], **audit}


def measure(setting: str, rounds: int, epochs: int) -> dict[str, Any]:
    """All plans in turn."""
    runs: dict[str, list[dict[str, Any]]] = {plan: [] for plan in PLANS}
    for number in range(rounds):
        for plan in PLANS:
            runs[plan].append(train(setting, plan, epochs))
            print(setting, number, plan, runs[plan][-1], flush=True)
    first = runs[PLANS[0]]
    rows = {}
    for plan, found in runs.items():
        ratios = sorted(ours["rate"] / theirs["rate"] for ours, theirs in zip(found, first, strict=True))
        losses = sorted(one["loss"] for one in found)
        usual = statistics.median(one["loss"] for one in first)
        rows[plan] = {
            "samples_per_s": round(statistics.median(one["rate"] for one in found), 1),
            "times_allreduce": [round(one, 2) for one in (statistics.median(ratios), ratios[0], ratios[-1])],
            "validation_loss": [round(one, 4) for one in (statistics.median(losses), losses[0], losses[-1])],
            "loss_beside_allreduce": round(statistics.median(losses) / usual - 1, 4),
            "lost": sum(one["samples_lost"] for one in found),
            "repeated": sum(one["samples_repeated"] for one in found),
            "same_order": all(one["order_sha256"] == first[0]["order_sha256"] for one in found),
        }
    return rows


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--setting", choices=("all", "hosts", "devices"), default="all")
    parser.add_argument("--quick", action="store_true", help="one round of two epochs, nothing is recorded")
    options = parser.parse_args()
    rounds, epochs = (1, 2) if options.quick else (options.rounds, 6)
    result = {
        **described(),
        "emulated": HOSTS,
        "stores": STORES,
        "nap_ms": [NAP_MS, 3 * NAP_MS],
        "rounds": rounds,
        "epochs": epochs,
    }
    result |= json.loads(RESULTS.read_text()) if RESULTS.exists() and options.setting != "all" else {}
    for setting in ("hosts", "devices") if options.setting == "all" else (options.setting,):
        result[setting] = measure(setting, rounds, epochs)
    print(json.dumps(result, indent=1))
    if not options.quick:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
