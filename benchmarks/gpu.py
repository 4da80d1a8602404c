"""Cordée on one GPU beside a loop written by hand, Accelerate and Lightning: `python benchmarks/gpu.py`.

Cordée meets one peer at a time. Both are alive at once on the same GPU and take turns of some steps: first the one,
then the other, then the other way round. A turn ends when the GPU has; a pair gives one ratio, the peer's time over
Cordée's. Above 1, Cordée is the faster one. Both train the same model in bf16, compiled, with a fused optimizer;
the hand-written loop and Cordée keep the data on the GPU, the frameworks have a loader of 8 processes that pins memory.
Peak memory is PyTorch's own count in each process; above 1 in `memory_ratio`, Cordée uses more than its peer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peers.figures import SIDES, Turns, summary
from peers.gpu_tasks import TASKS
from peers.machine import described
from peers.pace import Conductor

HERE = Path(__file__).parent / "peers"
RESULTS = Path(__file__).parent / "results" / "gpu.json"
PLAN = "precision=bf16,compile=true"


@dataclass(frozen=True)
class Peer:
    """What Cordée is compared with."""

    command: tuple[str, ...]
    """Its script, and words for it."""
    goal: float
    packages: tuple[str, ...] = ()
    plan: str = PLAN
    """Cordée's."""


PEERS = {
    "hand": Peer(("gpu_hand.py",), 0.98),
    "hand_graphs": Peer(("gpu_hand.py", "graphs"), 0.98),
    "hand_launched": Peer(("gpu_hand.py",), 0.98, plan=f"{PLAN},graphs=false"),
    "accelerate": Peer(("gpu_accelerate.py",), 1.0, ("accelerate",)),
    "lightning": Peer(("gpu_lightning.py",), 1.0, ("pytorch-lightning",)),
    "accelerate_usual": Peer(("gpu_accelerate.py", "usual"), 1.0, ("accelerate",)),
    "lightning_usual": Peer(("gpu_lightning.py", "usual"), 1.0, ("pytorch-lightning",)),
    "accelerate_plain": Peer(("gpu_accelerate.py", "plain"), 1.0, ("accelerate",)),
    "lightning_plain": Peer(("gpu_lightning.py", "plain"), 1.0, ("pytorch-lightning",)),
}
"""By name: a loop written by hand, which compiles; the same with CUDA graphs, which we use in every row but the next;
the same where we launch every kernel too; the frameworks, whose loaders gather a batch at once; the frameworks with
PyTorch's usual loader, whose processes make and augment samples one by one; and those as they are if they are not told
to compile."""


@contextlib.contextmanager
def process(command: list[str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start it; at the end it has gone by itself, or is ended. What it says is shown if it fails."""
    with said.open("wb") as output:
        running = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output)
    try:
        yield running
        if running.wait(120):
            raise RuntimeError(f"{command} ended with code {running.returncode}")
    except BaseException:
        print(said.read_text(errors="replace")[-4000:], file=sys.stderr)
        raise
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()


def take_turns(task: str, peer: str, pairs: int) -> tuple[Turns, dict[str, Any]]:
    """One start of both systems."""
    turns = Turns()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-")))
        systems = stack.enter_context(contextlib.ExitStack())
        conducting = stack.enter_context(contextlib.ExitStack())  # left before the systems: they end when it has gone
        conductor = conducting.enter_context(Conductor(folder))
        path = conductor.path
        ours = ["-m", "cordee", "train", str(HERE / "gpu_job.py"), "--workers", "1", "--device", "cuda"]
        ours += [
            "--plan",
            PEERS[peer].plan,
            "--out",
            str(folder / "run"),
            "--set",
            f"task={task}",
            "--set",
            f"turns={path}",
        ]
        script, *words = PEERS[peer].command
        running = [
            systems.enter_context(process(ours, folder / "said")),
            systems.enter_context(process([str(HERE / script), task, path, "peer", *words], folder / "said-peer")),
        ]
        conductor.gather(SIDES, 1, lambda: all(one.poll() is None for one in running))
        for number in range(-2, pairs):  # two pairs to compile and warm up
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                seconds = conductor.turn(side, TASKS[task].chunk)
                if number >= 0:
                    turns.seconds[side].append(seconds)
        conducting.close()
        systems.close()  # both have ended, and said how much memory they used
        peaks = {side: peak_of(folder / said) for side, said in zip(SIDES, ("said", "said-peer"), strict=True)}
    return turns, peaks


def peak_of(said: Path) -> list[int] | None:
    """Bytes allocated and reserved at the most, if the process told."""
    found = re.search(r"peak (\d+) (\d+)", said.read_text(errors="replace"))
    return [int(found[1]), int(found[2])] if found else None


def goal_of(task: str, peer: str) -> float:
    """The ratio that was to be reached: where images are augmented, twice the speed of the frameworks."""
    framework = not peer.startswith("hand")
    return 2.0 if framework and TASKS[task].augment is not None else PEERS[peer].goal


def measure(task: str, peer: str, starts: int, pairs: int) -> dict[str, Any]:
    """The figures of one task against one peer."""
    about = described(*PEERS[peer].packages)
    about |= {"gpu": torch.cuda.get_device_name(), "plan": PEERS[peer].plan, "goal": goal_of(task, peer)}
    taken = [take_turns(task, peer, pairs) for _ in range(starts)]
    figures = summary(TASKS[task].chunk, [turns for turns, _ in taken])
    peaks = taken[-1][1]
    if all(peaks.values()):
        figures["memory_gb"] = {side: [round(size / 1e9, 3) for size in peaks[side]] for side in SIDES}
        ratios = [round(ours / theirs, 4) for ours, theirs in zip(peaks["cordee"], peaks["peer"], strict=True)]
        figures["memory_ratio"] = dict(zip(("allocated", "reserved"), ratios, strict=True))
    del figures["processor_step_ms"], figures["processor_share_while_waiting"]
    units = TASKS[task].units * 1e3
    speeds = {side: round(units / figures[f"{side}_step_ms"]) for side in SIDES}
    return {**about, f"{TASKS[task].unit}_per_s": speeds, **figures}


def main() -> None:
    """Measure, print, and record what was measured beside what was recorded before."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), action="append")
    parser.add_argument("--peer", choices=list(PEERS), action="append")
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--record", type=Path, default=RESULTS, help="where to write the result")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA GPU, and PyTorch finds none here.")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    result = json.loads(given.record.read_text()) if given.record.exists() else {}
    for task in given.task or TASKS:
        for peer in given.peer or PEERS:
            if TASKS[task].objective is not None and not peer.startswith("hand"):
                continue  # the frameworks' scripts take a loss of output and target
            figures = result.setdefault(task, {})[peer] = measure(task, peer, given.starts, given.pairs)
            low, high = figures["ratio_median_95"]
            speeds = figures[f"{TASKS[task].unit}_per_s"]
            print(
                f"{task:>9} {peer:>10}: {speeds['peer']:>9,} {TASKS[task].unit}/s, Cordée {speeds['cordee']:>9,};"
                f" ratio {figures['ratio_median']:.3f}, 95 % {low:.3f} to {high:.3f};"
                f" memory {figures.get('memory_ratio')}",
                flush=True,
            )
            given.record.parent.mkdir(exist_ok=True)
            given.record.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
