"""What `tensor=2` costs beside tensor parallelism by hand: `python benchmarks/tensor.py`.

A GPT on 2 workers of 1 thread, each with its slices: Cordée finds the cut by itself, the peer is torch's
`parallelize_module` with the same layers named by hand. Both are alive at once and take turns, as in overhead.py: a
pair gives one ratio, the peer's time over Cordée's. Above 1, Cordée is the faster one.
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
from peers.systems import WORKERS, Peer, cordee, started

RESULTS = Path(__file__).parent / "results" / "tensor.json"
CHUNK, GOAL = 4, 0.97
TASKS = {
    "gpt": "6 blocks of width 384 over bytes: 10.9 million parameters, of which 10.7 are cut",
    "words": "4 blocks of width 256 and 16,384 words, which are cut too: 11.6 million parameters",
}
HAND = Peer("a loop by hand: parallelize_module with ColwiseParallel and RowwiseParallel, gloo", "tensor_hand.py")
PLAN = "tensor=2"


def take_turns(task: str, pairs: int) -> Turns:
    """One start of both sides."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tensor-")))
        systems = stack.enter_context(contextlib.ExitStack())
        conductor = stack.enter_context(Conductor(folder))  # left before the systems: they end when it has gone
        running = {
            "peer": systems.enter_context(started(HAND, task, conductor.path, "peer", folder)),
            "cordee": systems.enter_context(cordee(f"tensor-{task}", conductor.path, folder, PLAN)),
        }
        conductor.gather(tuple(running), WORKERS, lambda: all(one.poll() is None for one in running.values()))
        return take_pairs(conductor, {side: process.pid for side, process in running.items()}, CHUNK, pairs)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=sorted(TASKS), action="append", help="only these, nothing is recorded")
    parser.add_argument("--quick", action="store_true", help="6 pairs in one start, nothing is recorded")
    given = parser.parse_args()
    starts, pairs = (1, 6) if given.quick else (4, 10)
    result: dict[str, Any] = {
        **described("cordee"),
        "workers": f"{WORKERS} of 1 thread each",
        "plan": PLAN,
        "peer": HAND.words,
        "ratio": "the peer's time over Cordée's, pair by pair: above 1, Cordée is faster",
        "goal": GOAL,
        "tasks": {},
    }
    for task in given.task or TASKS:
        figures = summary(CHUNK, [take_turns(task, pairs) for _ in range(starts)])
        result["tasks"][task] = {"what": TASKS[task], **figures}
        low, high = figures["ratio_median_95"]
        print(
            f"{task:>6}: by hand {figures['peer_step_ms']:.1f} ms per step, Cordée {figures['cordee_step_ms']:.1f} ms;"
            f" ratio {figures['ratio_median']:.3f} ({low:.3f} to {high:.3f}),"
            f" of each start {figures['ratio_median_of_each_start']}",
            flush=True,
        )
    if not given.task and not given.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(written(result))


if __name__ == "__main__":
    main()
