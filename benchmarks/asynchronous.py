"""What asynchronous parameter servers learn, beside one process: `python benchmarks/asynchronous.py`.

A small network on the package's digits, with SGD and momentum, and with AdamW; the learning rate decays to zero. Each
job is trained with several seeds by one process, and by workers whose forward passes take different times. The result
is the validation loss at the end, for each plan its distance from one process with the same seed: mean, and the
smallest and largest of single runs.

This file is also the job that is trained.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from peers.machine import described
from torch import nn
from unequal import Nap

import cordee

RESULTS = Path(__file__).parent / "results" / "asynchronous.json"
CASES = (
    (2, "sync=server,mode=async"),
    (2, "sync=server,mode=stale,staleness=4"),
    (4, "sync=server,mode=async"),
    (4, "sync=server,mode=stale,staleness=4"),
)
OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=3e-3, weight_decay=0.1),
}


def job(optimizer: str = "momentum", epochs: int = 60) -> cordee.Job:
    """Digits; the last worker takes three times as long as the others for a step."""
    world, data = cordee.World.from_env(), cordee.data.digits()
    seconds = 0.0 if world.size == 1 else 0.006 if world.rank == world.size - 1 else 0.002
    steps = epochs * -(-len(data.train) // 100)
    return cordee.Job(
        preflight=False,
        model=lambda: nn.Sequential(Nap(seconds), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10)),
        loss=nn.functional.cross_entropy,
        optimizer=OPTIMIZERS[optimizer],
        schedule=lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, steps),
        data=data,
        batch=100,
        epochs=epochs,
    )


def train(optimizer: str, seed: int, epochs: int, workers: int, plan: str) -> float:
    """The validation loss at the end of one run."""
    with tempfile.TemporaryDirectory(prefix="asynchronous-") as folder:
        asked = ["--workers", str(workers), "--plan", plan, "--out", f"{folder}/run", "--threads", "1"]
        asked += ["--set", f"optimizer={optimizer}", "--set", f"epochs={epochs}", "--set", f"seed={seed}"]
        command = [sys.executable, "-m", "cordee", "train", __file__, *asked]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        result = json.loads((Path(folder) / "run" / "result.json").read_text())
        assert result["samples_lost"] == result["samples_repeated"] == 0
        return float(result["validation"]["loss"])


def measure(optimizer: str, seeds: int, epochs: int) -> dict[str, Any]:
    """All plans beside one process, with each seed."""
    alone = [train(optimizer, seed, epochs, 1, "auto") for seed in range(seeds)]
    rows: dict[str, Any] = {"one process": [round(one, 4) for one in alone]}
    for workers, plan in CASES:
        losses = [train(optimizer, seed, epochs, workers, plan) for seed in range(seeds)]
        beside = [ours / theirs - 1 for ours, theirs in zip(losses, alone, strict=True)]
        rows[f"{workers} workers, {plan}"] = {
            "validation_loss": [round(one, 4) for one in losses],
            "mean_beside_one_process": round(statistics.mean(beside), 4),
            "least_and_most": [round(min(beside), 4), round(max(beside), 4)],
        }
        print(optimizer, workers, plan, rows[f"{workers} workers, {plan}"], flush=True)
    return rows


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--optimizer", choices=("all", *OPTIMIZERS), default="all")
    parser.add_argument("--quick", action="store_true", help="two seeds of ten epochs, nothing is recorded")
    options = parser.parse_args()
    seeds, epochs = (2, 10) if options.quick else (options.seeds, options.epochs)
    names = list(OPTIMIZERS) if options.optimizer == "all" else [options.optimizer]
    result = {**described(), "seeds": seeds, "epochs": epochs}
    result |= {name: measure(name, seeds, epochs) for name in names}
    print(json.dumps(result, indent=1))
    if not options.quick and options.optimizer == "all":
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
