"""How long it takes from a command to its first committed step, and to its help: `python benchmarks/startup.py`.

`warm` has a fork server waiting (`cordee warm`), `cold` has none. The end of the first step is read from the run's own
record, which has the time at which it was committed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.machine import described

WORKERS = 2
JOB = Path(__file__).parents[1] / "examples" / "digits.py"
RESULTS = Path(__file__).parent / "results" / "startup.json"
CORDEE = (sys.executable, "-m", "cordee")
LONGEST_S = 120.0


@contextlib.contextmanager
def private_folder() -> Iterator[dict[str, str]]:
    """An environment in which no fork server of this user is found but our own."""
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        yield {**os.environ, "XDG_RUNTIME_DIR": folder}


@contextlib.contextmanager
def warm_server(environment: dict[str, str]) -> Iterator[None]:
    """A fork server, as `cordee warm` leaves it behind; it is ended by its number."""
    command = [*CORDEE, "warm", "--minutes", "10"]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=LONGEST_S).stdout
    found = re.search(r"process (\d+)", said)
    if found is None:
        raise RuntimeError(f"`cordee warm` did not name its process: {said!r}")
    try:
        yield
    finally:
        os.kill(int(found[1]), signal.SIGTERM)


def first_step_s(environment: dict[str, str]) -> float:
    """From the command to the commitment of its first step."""
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        out = Path(folder) / "run"
        command = [*CORDEE, "train", str(JOB), "--workers", str(WORKERS), "--out", str(out), "--set", "epochs=1"]
        began = time.time()
        subprocess.run(command, env=environment, capture_output=True, check=True, timeout=LONGEST_S)
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        return float(next(event["at"] for event in events if event["event"] == "step")) - began


def command_s(command: tuple[str, ...]) -> float:
    """From the start of a command to its end."""
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True, timeout=LONGEST_S)
    return time.perf_counter() - began


def figures(seconds: list[float]) -> dict[str, Any]:
    """The median, and all of them."""
    return {"median_s": round(statistics.median(seconds), 4), "all_s": [round(value, 4) for value in seconds]}


def measure(times: int) -> dict[str, Any]:
    """All figures; what is compared is measured in turn."""
    warm, cold, bare, help_ = [], [], [], []
    with private_folder() as empty, private_folder() as warmed, warm_server(warmed):
        first_step_s(warmed)  # fills the caches of the file system
        for _ in range(times):
            warm.append(first_step_s(warmed))
            cold.append(first_step_s(empty))
    for _ in range(2 * times):
        bare.append(command_s((sys.executable, "-c", "pass")))
        help_.append(command_s((*CORDEE, "--help")))
    beyond = [ours - theirs for ours, theirs in zip(help_, bare, strict=True)]
    return {
        "first_step_warm": {**figures(warm), "goal_s": 1.0},
        "first_step_cold": figures(cold),
        "bare_python": figures(bare),
        "help": figures(help_),
        "help_beyond_bare_python": {**figures(beyond), "goal_s": 0.5},
    }


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="twice each, nothing is recorded")
    quick = parser.parse_args().quick
    result = measure(2 if quick else 9)
    for name, measured in result.items():
        low, high = min(measured["all_s"]), max(measured["all_s"])
        print(f"{name:>24}: median {measured['median_s']:.3f} s ({low:.3f} to {high:.3f})")
    if not quick:
        RESULTS.parent.mkdir(exist_ok=True)
        head = {**described(), "workers": WORKERS, "job": JOB.name}
        RESULTS.write_text(json.dumps({**head, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
