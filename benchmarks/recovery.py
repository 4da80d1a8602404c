"""What a run loses when workers are lost, beside torchrun and torchft: `python benchmarks/recovery.py`.

`blows`: of 3 workers one, drawn at random, is killed (SIGKILL) or stopped (SIGSTOP) at a random instant: in
training, in evaluation, while a checkpoint is written, worker 0 (which speaks for all) included. Measured is the time
from the signal to the first step that the survivors commit together, less the run's median step. Every run is compared
with an undisturbed one of one process: losses, parameters, order of the samples.

The other parts are in `peers/losing_parts.py`: `kill` (beside the peers: stalls, joins, steps and samples, goodput),
`hosts` (workers and hosts that are lost in a twin), `coordinator`, and `overhead`. `--only` chooses parts; each
replaces what is recorded of it.

This file is also the job of `blows`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cordee

RESULTS = Path(__file__).parent / "results" / "recovery.json"
WORKERS = 3
STEPS = 45
"""Three epochs of 15."""
PHASES = ("training", "training", "training", "evaluation", "checkpoint")
"""In turn: three of five instants fall into training."""


# ------------------------------------------------------------- the job


class Model(nn.Module):
    """Digits with BatchNorm, in float64; every forward pass takes a few milliseconds."""

    def __init__(self) -> None:
        """As of a seed."""
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the ten digits."""
        if not torch.compiler.is_compiling():
            time.sleep(0.015 if self.training else 0.005)
        out: Tensor = self.body(x.double())
        return out


def job(pids: str = "") -> cordee.Job:
    """The job that loses a worker; `pids` is a folder for the workers' process numbers."""
    from cordee.train.job import Save

    if pids:
        (Path(pids) / str(cordee.World.from_env().rank)).write_text(str(os.getpid()))
    return cordee.Job(
        model=Model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        data=cordee.data.digits(),
        batch=101,
        epochs=3,
        metrics={"accuracy": cordee.metrics.accuracy},
        save=Save(steps=7),
        preflight=False,
    )


# ------------------------------------------------------------- one blow


class Blow:
    """Listens to a run and sends a signal to one worker at a drawn instant."""

    def __init__(self, seed: int, pids: Path) -> None:
        """Draw who, how, in which phase and when."""
        draw = random.Random(seed)
        self.phase = PHASES[seed % len(PHASES)]
        self.victim = draw.randrange(WORKERS)
        self.signal = draw.choice((signal.SIGKILL, signal.SIGSTOP))
        self.at: float | None = None
        epoch = draw.randrange(2)
        # A checkpoint is written after every 7th step, an evaluation follows every 15th.
        step = {"training": draw.randrange(2, 30), "evaluation": 15 * (epoch + 1), "checkpoint": 7 * (1 + epoch)}
        self.step = step[self.phase]
        self._delay_s = draw.uniform(0.0, 0.03 if self.phase == "training" else 0.012)
        self._pid = pids / str(self.victim)
        self._timer: threading.Timer | None = None

    def __call__(self, event: Any) -> None:
        """Called with every event of the run."""
        if self._timer is None and event.kind == "step" and event.step >= self.step:
            self._timer = threading.Timer(self._delay_s, self._strike)
            self._timer.start()

    def _strike(self) -> None:
        self.at = time.time()
        os.kill(int(self._pid.read_text()), self.signal)


def train(
    out: Path,
    *,
    workers: int,
    listen: Callable[[Any], None],
    plan: Any = None,
    file: str = __file__,
    **settings: str,
) -> list[dict[str, Any]]:
    """One run of the job of a file, with these settings; its events."""
    import msgspec

    from cordee.core.eventlog import read_events
    from cordee.core.plan import Plan
    from cordee.runtime.launch import Launch
    from cordee.runtime.spec import Target
    from cordee.runtime.start import run

    target = Target("job", file, settings)
    run(Launch(target, workers, plan or Plan(), out, threads=1, deadline_s=60.0), listen)
    return [msgspec.to_builtins(event) for event in read_events(out / "events.jsonl")]


def strike(seed: int, folder: Path, alone: Path) -> dict[str, Any]:
    """One run with one blow, measured and compared."""
    (folder / "pids").mkdir(parents=True)
    blow = Blow(seed, folder / "pids")
    events = train(folder / "run", workers=WORKERS, listen=blow, pids=str(folder / "pids"))
    steps = [event for event in events if event["event"] == "step"]
    regrouped = next(event for event in events if event["event"] == "regroup")
    assert blow.at is not None
    first = next(event["at"] for event in steps if event["at"] > regrouped["time"] - 1e-3)
    usual_s = statistics.median(event["ms"] for event in steps) / 1e3
    failure = next(event for event in events if event["event"] == "failure")
    return {
        "seed": seed,
        "phase": blow.phase,
        "signal": blow.signal.name,
        "worker": blow.victim,
        "step": blow.step,
        "noticed_s": round(failure["time"] - blow.at, 4),
        "regrouped_s": round(regrouped["time"] - blow.at, 4),
        "beyond_a_step_s": round(first - blow.at - usual_s, 4),
        "step_s": round(usual_s, 4),
        **differences(folder / "run", alone),
    }


def differences(run: Path, alone: Path) -> dict[str, Any]:
    """How far a run is from the one of one process."""
    from safetensors.torch import load_file

    from cordee.core.eventlog import read_events
    from cordee.core.events import StepEvent

    ours, theirs = (json.loads((one / "result.json").read_text()) for one in (run, alone))
    losses = [[e.loss for e in read_events(one / "events.jsonl") if isinstance(e, StepEvent)] for one in (run, alone)]
    tensors = [load_file(one / "model.safetensors") for one in (run, alone)]
    return {
        "same_order": ours["order_sha256"] == theirs["order_sha256"],
        "lost": ours["samples_lost"],
        "repeated": ours["samples_repeated"],
        "failures": ours["failures"],
        "loss_off": max(abs(a - b) / abs(b) for a, b in zip(*losses, strict=True)),
        "tensor_off": max(float((tensors[0][name] - value).abs().max()) for name, value in tensors[1].items()),
    }


# ------------------------------------------------------------- all of them


def measure(count: int, folder: Path) -> dict[str, Any]:
    """All blows, and what they show together."""
    train(folder / "alone", workers=1, listen=lambda event: None)
    blows = []
    for seed in range(count):
        blows.append(strike(seed, folder / str(seed), folder / "alone"))
        shutil.rmtree(folder / str(seed))
        print(" ".join(f"{name}={value}" for name, value in blows[-1].items()), flush=True)
    by = {
        one: [blow for blow in blows if one in (blow["signal"], blow["phase"])]
        for one in ("SIGKILL", "SIGSTOP", *PHASES)
    }
    return {
        "beyond_a_step_s": {"all": summary(blows)} | {name: summary(some) for name, some in by.items()},
        "all_the_same": all(
            one["same_order"] and not one["lost"] and not one["repeated"] and one["failures"] == 1
            and one["loss_off"] <= 1e-12 and one["tensor_off"] <= 1e-9
            for one in blows
        ),
        "blows": blows,
    }  # fmt: skip


def summary(blows: list[dict[str, Any]]) -> dict[str, float]:
    """Median, 95th percentile and largest of the time that was lost."""
    values = sorted(one["beyond_a_step_s"] for one in blows)
    if not values:
        return {}
    high = values[min(len(values) - 1, round(0.95 * (len(values) - 1)))]
    return {"count": len(values), "median": statistics.median(values), "p95": high, "max": values[-1]}


def main() -> None:
    """Measure, print and record."""
    from peers.losing_parts import PARTS
    from peers.machine import described

    from cordee.runtime.engines.warm import start_warm

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", help="of blows, " + ", ".join(PARTS) + "; joined by commas")
    parser.add_argument("--count", type=int, default=50, help="how many blows")
    parser.add_argument("--kills", type=int, default=6, help="of each system, and of each kind in a twin")
    parser.add_argument("--quick", action="store_true", help="few of everything, nothing is recorded")
    given = parser.parse_args()
    if given.quick:
        given.count, given.kills = 6, 2
    chosen = given.only.split(",") if given.only else ["blows", *PARTS]
    if odd := set(chosen) - {"blows", *PARTS}:
        parser.error(f"--only {','.join(sorted(odd))}: expected some of blows, {', '.join(PARTS)}")
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory(prefix="cordee-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder  # a warm server of our own
        server = start_warm(minutes=60)
        try:
            for name in chosen:
                began = time.monotonic()
                place = Path(folder) / name
                found = measure(given.count, place) if name == "blows" else PARTS[name](given.kills, place)
                found = {**described(), "took_s": round(time.monotonic() - began), **found}
                shown = {key: value for key, value in found.items() if key != "blows"}
                print(name, json.dumps(shown, indent=1), flush=True)
                result[name] = found
                if not given.quick:
                    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
    sys.exit(0 if result.get("blows", {"all_the_same": True})["all_the_same"] else 1)


if __name__ == "__main__":
    main()
