"""What `exact=true` costs: `python benchmarks/exact.py`.

Two runs of Cordée that differ in the plan alone, each with 2 workers of 1 thread, are alive at once and take turns of a
few steps: first the one, then the other, then the other way round. A pair gives one ratio: the time with `exact=true`
over that without. Above 1, exact is slower. Both are started anew several times.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from peers.figures import Turns, summary, written
from peers.machine import described
from peers.pace import Conductor
from peers.pairs import take_pairs
from peers.systems import WORKERS, cordee
from peers.tasks import TASKS

RESULTS = Path(__file__).parent / "results" / "exact.json"
SHOWN = ("mlp", "cnn")
HEAD = {
    "workers": f"{WORKERS} of 1 thread each",
    "cordee": "sync=allreduce",
    "peer": "the same with exact=true",
    "ratio": "the time with exact=true over that without, pair by pair: above 1, exact is slower",
}


def take_turns(name: str, pairs: int, pieces: int) -> Turns:
    """One start of both."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exact-")))
        systems = stack.enter_context(contextlib.ExitStack())
        conductor = stack.enter_context(Conductor(folder))  # left before the systems: they end when it has gone
        (folder / "exact").mkdir()
        plan = f"exact=true,pieces={pieces}"
        running = {
            "peer": systems.enter_context(cordee(name, conductor.path, folder / "exact", plan, "peer")),
            "cordee": systems.enter_context(cordee(name, conductor.path, folder)),
        }
        conductor.gather(tuple(running), WORKERS, lambda: all(one.poll() is None for one in running.values()))
        return take_pairs(conductor, {side: one.pid for side, one in running.items()}, TASKS[name].chunk, pairs)


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """By number of pieces: the figures of one task, printed as they come."""
    found: dict[str, Any] = {}
    for pieces in given.pieces or (8, 2):
        figures = summary(TASKS[name].chunk, [take_turns(name, given.pairs, pieces) for _ in range(given.starts)])
        found[str(pieces)] = figures
        times = f"{figures['cordee_step_ms']:8.3f} ms, exact {figures['peer_step_ms']:8.3f} ms"
        print(f"{name} {pieces} pieces: {times}, ratio {figures['ratio_median']:.3f}", figures["ratio_median_95"])
    return found


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--pieces", type=int, action="append")
    parser.add_argument("--task", choices=SHOWN, action="append")
    parser.add_argument("--record", type=Path, metavar="FILE", default=RESULTS)
    given = parser.parse_args()
    tasks = {name: measured(name, given) for name in given.task or SHOWN}
    given.record.write_text(written({**described("cordee"), **HEAD, "tasks": tasks}))


if __name__ == "__main__":
    main()
