"""A GPT that does not fit on one GPU, trained there with recomputed blocks and AdamW's state in host memory.

`python benchmarks/large.py` looks for the deepest GPT of width 2,048 that a loop by hand trains whole (bf16, batch 32
of 1,024 tokens). Then it trains one of at least 2.5 times its parameters: by Cordée under a plan, and by a loop written
by hand with the same means. Each is a process of its own, one after the other: the GPU holds one of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers.machine import described

LOOP = Path(__file__).parent / "peers" / "large_loop.py"
RESULTS = Path(__file__).parent / "results" / "large.json"
FACTOR = 2.5
STEP = 4
"""Depths that are tried are multiples of it."""


def run(side: str, depth: int) -> dict[str, Any] | None:
    """The figures of one loop; None if it does not fit."""
    ended = subprocess.run(
        [sys.executable, str(LOOP), side, str(depth)], capture_output=True, text=True, timeout=540, check=False
    )
    said = dict(line.split(" ", 1) for line in ended.stdout.splitlines() if " " in line)
    if ended.returncode == 3:
        print(f"{side:>7} depth {depth:>3}: does not fit", flush=True)
        return None
    if ended.returncode:
        print(ended.stdout[-2000:], ended.stderr[-4000:], file=sys.stderr)
        raise RuntimeError(f"{side} at depth {depth} ended with code {ended.returncode}")
    tokens, step, peak = map(float, said["figures"].split())
    figures = {
        "depth": depth,
        "parameters": int(said["parameters"]),
        "tokens_per_s": round(tokens),
        "step_s": step,
        "peak_gb": round(peak / 1e9, 2),
    }
    print(f"{side:>7} depth {depth:>3}: {figures}", flush=True)
    return figures


def largest_whole(low: int, high: int) -> dict[str, Any]:
    """The deepest that fits, from `low` on, below `high`."""
    best = run("whole", low)
    if best is None:
        raise RuntimeError(f"a depth of {low} does not fit whole: give a smaller --low")
    while high - best["depth"] > STEP:
        middle = (best["depth"] + high) // 2 // STEP * STEP
        if (found := run("whole", middle)) is None:
            high = middle
        else:
            best = found
    return best


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--low", type=int, default=24, help="a depth that fits whole")
    parser.add_argument("--high", type=int, default=64, help="a depth that does not")
    parser.add_argument("--record", type=Path, default=RESULTS, help="where to write the result")
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA GPU, and PyTorch finds none here.")
    whole = largest_whole(given.low, given.high)
    depth = -(-int(FACTOR * whole["depth"] + STEP) // STEP) * STEP  # embeddings are in both
    sides = {side: run(side, depth) for side in ("cordee", "hand")}
    refused = run("whole", depth)
    result = {**described(), "gpu": torch.cuda.get_device_name(), "whole": whole, **sides, "without_means": refused}
    if all(sides.values()):
        ours, hand = sides["cordee"], sides["hand"]
        assert ours is not None and hand is not None
        result["times_the_parameters"] = round(ours["parameters"] / whole["parameters"], 3)
        result["speed_ratio"] = round(ours["tokens_per_s"] / hand["tokens_per_s"], 4)
        result["memory_ratio"] = round(ours["peak_gb"] / hand["peak_gb"], 4)
    print(json.dumps(result, indent=1, ensure_ascii=False), flush=True)
    given.record.parent.mkdir(exist_ok=True)
    given.record.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
