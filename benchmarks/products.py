"""Every model under every split, beside one process on the same device: `python benchmarks/products.py`.

Each cell of the table trains a model of `tests/splits.py` under one of its plans: 20 steps of AdamW with clipping, in
fp64. It is `same` if every loss is within 1e-10 (relative) and every parameter and buffer within 1e-8 (absolute) of one
process, with the same samples in every step; otherwise `differs`. `refused` is what ended before the first step, with
the first sentence of the reason; `failed` what ended later, or did not end in time.

`--device cuda` puts all workers on the GPUs there are, all on one if there is one: gloo then carries what they
exchange. `--only` and `--plan` choose cells. Every cell is recorded as soon as it is there, and replaces the former one
of its device, model and plan; several of these scripts may write into one file.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from peers.machine import described

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from cordee.core.errors import CordeeError, Interrupted
from cordee.core.events import StepEvent
from harness import Run, distance, train
from splits import MODELS, PLANS, Model, Split

RESULTS = Path(__file__).parent / "results" / "products.json"
STEPS = 20
LOSS, PARAMETER = 1e-10, 1e-8

Cell = dict[str, Any]


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in a block that takes longer."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def first_sentence(error: Exception) -> str:
    """What ended a run, in one line."""
    return " ".join(str(error).split()).partition(". ")[0].removesuffix(".") + "."


def compare(run: Run, alone: Run) -> Cell:
    """How far a run is from that of one process."""
    losses, expected = np.asarray(run.losses), np.asarray(alone.losses)
    order = run.result["order_sha256"] == alone.result["order_sha256"]
    if len(losses) != STEPS or not order:
        return {"verdict": "differs", "reason": f"{len(losses)} steps, samples {'as' if order else 'other than'} alone"}
    loss = float((np.abs(losses - expected) / np.abs(expected)).max())
    off = distance(run, alone)
    same = loss <= LOSS and off <= PARAMETER
    return {"verdict": "same" if same else "differs", "loss": float(f"{loss:.1e}"), "parameter": float(f"{off:.1e}")}


def try_cell(model: Model, split: Split, alone: Run, out: Path, device: str, deadline_s: float) -> Cell:
    """Train once."""
    about: Cell = {"plan": model.plan(split), "workers": split.workers}
    steps = 0

    def count(event: Any) -> None:
        nonlocal steps
        steps += isinstance(event, StepEvent)

    try:
        with within(deadline_s):
            run = train(
                model.job, out, plan=about["plan"], workers=split.workers, listen=count, device=device, **model.settings
            )
        return about | compare(run, alone)
    except Interrupted:
        raise
    except Exception as error:
        refused = steps == 0 and isinstance(error, CordeeError)
        return about | {"verdict": "refused" if refused else "failed", "reason": first_sentence(error)}


def record(path: Path, device: str, about: dict[str, str], cells: dict[str, dict[str, Cell]]) -> None:
    """Put these cells into the file, in the order of the tables. `runs` says where and when they were trained."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        result = json.loads(file.read() or "{}")
        result[device] = merged(result.get(device, {"runs": [], "cells": {}}), about, cells)
        # Each cell, and each entry of `runs`, on one line.
        text = json.dumps(dict(sorted(result.items())), indent=1, ensure_ascii=False)
        file.truncate(0)
        file.write(re.sub(r"\{([^{}]*)\}", lambda found: "{" + " ".join(found[1].split()) + "}", text) + "\n")


def merged(part: dict[str, Any], about: dict[str, str], cells: dict[str, dict[str, Cell]]) -> dict[str, Any]:
    """What is recorded of a device, with these cells in place of its own."""
    runs: list[dict[str, str]] = [*part["runs"], *([about] if about not in part["runs"] else [])]
    rows = {name: dict(row) for name, row in part["cells"].items()}
    for name, row in cells.items():
        rows.setdefault(name, {}).update({plan: cell | {"run": runs.index(about)} for plan, cell in row.items()})
    rows = {name: {plan: rows[name][plan] for plan in PLANS if plan in rows[name]} for name in MODELS if name in rows}
    used = sorted({cell["run"] for row in rows.values() for cell in row.values()})
    for cell in (cell for row in rows.values() for cell in row.values()):
        cell["run"] = used.index(cell["run"])
    words = {name: MODELS[name].words for name in rows}
    return {"runs": [runs[number] for number in used], "models": words, "cells": rows}


def chosen(models: str, plan: str) -> tuple[list[str], list[str]]:
    """The models of these names, separated by commas; the plan of this name, or all that have it in theirs."""
    names = models.split(",") if models else list(MODELS)
    plans = [plan] if plan in PLANS else [one for one in PLANS if plan in one]
    if unknown := {*names} - {*MODELS}:
        sys.exit(f"--only {models}: {', '.join(unknown)} is not known; expected some of {', '.join(MODELS)}")
    if not plans:
        sys.exit(f"--plan {plan}: no plan has this in its name; there are: {'; '.join(PLANS)}")
    return names, plans


def main() -> None:
    """Train, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", default="", help=f"these models, separated by commas, of {', '.join(MODELS)}")
    parser.add_argument(
        "--plan", default="", help="the plan of this name, or all that have it in their name, such as pipeline=2,shard"
    )
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds that a cell may take")
    parser.add_argument("--record", type=Path, default=RESULTS, help="the file into which the cells are put")
    given = parser.parse_args()
    models, plans = chosen(given.only, given.plan)
    about = described("transformers")
    if given.device == "cuda":
        import torch

        about["gpu"] = torch.cuda.get_device_name()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the warm server has to end too
    verdicts: Counter[str] = Counter()
    with warm_server() as folder:
        for name in models:
            model = MODELS[name]
            with within(given.deadline):
                alone = train(model.job, folder / name, device=given.device, **model.settings)
            if len(alone.losses) != STEPS or alone.losses[0] == alone.losses[-1]:
                sys.exit(f"{name} did not train for {STEPS} steps in one process: {alone.losses}")
            for number, plan in enumerate(plans):
                out = folder / f"{name}-{number}"
                cell = try_cell(model, PLANS[plan], alone, out, given.device, given.deadline)
                record(given.record, given.device, about, {name: {plan: cell}})
                verdicts[cell["verdict"]] += 1
                numbers = {key: cell[key] for key in ("loss", "parameter", "reason") if key in cell}
                print(f"{name:>8}  {plan:<45} {cell['verdict']:<8} {numbers}", flush=True)
    print(", ".join(f"{verdict}: {count}" for verdict, count in verdicts.items()))
    sys.exit(1 if verdicts["failed"] else 0)


@contextlib.contextmanager
def warm_server() -> Iterator[Path]:
    """A warm server of our own, and a folder."""
    from cordee.runtime.engines.warm import start_warm

    with tempfile.TemporaryDirectory(prefix="cordee-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        server = start_warm(minutes=60)
        try:
            yield Path(folder)
        finally:
            with contextlib.suppress(ProcessLookupError):  # on a slow machine its hour is over
                os.kill(server, signal.SIGKILL)
                os.waitpid(server, 0)


if __name__ == "__main__":
    main()
