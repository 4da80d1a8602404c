"""What a step of `shard=params` costs beside FSDP2 by hand and Accelerate's FSDP: `python benchmarks/sharded.py`.

A GPT on 2 workers of 1 thread each; all have the same blocks as units, the same batch, AdamW and no clipping. Cordée
meets one peer at a time, in turns of a few steps, as in `overhead.py`.

Accelerate as documented did not run: it has FSDP on GPUs and their kin only, and on CPUs ignores the plugin and trains
with DDP. So its state is set by hand (`peers/accelerate_fsdp.py`), and its own code then shards model and optimizer.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from overhead import HEAD, show
from peers.figures import Turns, summary, written
from peers.machine import described
from peers.pace import Conductor
from peers.pairs import take_pairs
from peers.systems import WORKERS, Peer, cordee, started
from peers.tasks import TASKS

RESULTS = Path(__file__).parent / "results" / "sharded.json"
TASK = "gpt"
PLAN = "shard=params"
GOAL = 0.97
"""What the lower end of the interval has to reach."""
PEERS = {
    "fsdp2": Peer("a loop by hand with FSDP2, each block a unit; gathers a batch from memory in one call", "fsdp2.py"),
    "accelerate": Peer(
        "Hugging Face Accelerate with FSDP2, each block a unit. As documented it did not run: on CPUs it ignores its"
        " FSDP plugin (AcceleratorState reads it for MULTI_GPU and its kin, not for MULTI_CPU) and trains with DDP."
        " Here its state is set to FSDP by hand; its own code then shards model and optimizer",
        "accelerate_fsdp.py",
        "accelerate",
    ),
}


def take_turns(peer: Peer, pairs: int, *, control: bool) -> Turns:
    """One start. With `control` a second group of the peer stands in for Cordée: its ratio should be 1."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharded-")))
        systems = stack.enter_context(contextlib.ExitStack())
        conductor = stack.enter_context(Conductor(folder))  # left before the systems: they end when it has gone
        start = partial(started, peer, TASK, conductor.path, folder=folder)
        ours = start("cordee") if control else cordee(TASK, conductor.path, folder, plan=PLAN)
        running = {"peer": systems.enter_context(start("peer")), "cordee": systems.enter_context(ours)}
        conductor.gather(tuple(running), WORKERS, lambda: all(one.poll() is None for one in running.values()))
        pids = {side: process.pid for side, process in running.items()}
        return take_pairs(conductor, pids, TASKS[TASK].chunk, pairs)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", choices=list(PEERS), action="append", help="only these, nothing is recorded")
    parser.add_argument("--quick", action="store_true", help="6 pairs in one start, nothing is recorded")
    parser.add_argument("--control", action="store_true", help="each peer against itself, nothing is recorded")
    given = parser.parse_args()
    starts, pairs = (1, 6) if given.quick else (4, 10)
    left_out: dict[str, str] = {}
    figures: dict[str, Any] = {}
    for name in given.peer or PEERS:
        if why := PEERS[name].missing:
            left_out[name] = why
            continue
        try:
            turns = [take_turns(PEERS[name], pairs, control=given.control) for _ in range(starts)]
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            left_out[name] = f"failed: {error}"
            continue
        about = described("cordee", *([] if PEERS[name].module == "torch" else [PEERS[name].module]))
        figures[name] = {**about, **summary(TASKS[TASK].chunk, turns)}
        show(TASK, name, figures[name])
    for name, why in left_out.items():
        print(f"without {name}: {why}", file=sys.stderr)
    if not (given.peer or given.quick or given.control):
        words = {name: peer.words for name, peer in PEERS.items()}
        about = {**HEAD, "task": TASK, "plan": PLAN, "goal": GOAL, "peers": words, "left_out": left_out}
        RESULTS.write_text(written({**about, "figures": figures}))


if __name__ == "__main__":
    main()
