"""This version of Cordée beside another one, in one run: `python benchmarks/versions.py FOLDER`.

FOLDER holds the `cordee` package of the other version: after `git worktree add ../old COMMIT` it is `../old/src`. Both
versions are alive at once and take turns of a few steps, as in `overhead.py`; a pair gives one ratio, the other
version's time over this one's. Above 1, this version is the faster one. With `--gpu` one worker on the GPU, in bf16 and
compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers.figures import SIDES, Turns, summary
from peers.machine import described
from peers.pace import Conductor
from peers.systems import HERE, WORKERS, process

SOURCE = Path(__file__).parents[1] / "src"
GPU_PLAN = "precision=bf16,compile=true"


def command(task: str, path: str, side: str, folder: Path, *, gpu: bool) -> list[str]:
    """A run of either version: the same job."""
    words = [sys.executable, "-m", "cordee", "train", str(HERE / ("gpu_job.py" if gpu else "job.py"))]
    words += ["--out", str(folder / side), "--set", f"task={task}", "--set", f"turns={path}", "--set", f"side={side}"]
    return [*words, "--workers", "1", "--device", "cuda", "--plan", GPU_PLAN] if gpu else [
        *words, "--workers", str(WORKERS), "--threads", "1"
    ]  # fmt: skip


def take_turns(task: str, other: Path, chunk: int, pairs: int, *, gpu: bool) -> Turns:
    """One start of both versions."""
    turns = Turns()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="versions-")))
        systems = stack.enter_context(contextlib.ExitStack())
        conductor = stack.enter_context(Conductor(folder))  # left before the systems: they end when it has gone
        running = []
        for side, source in zip(SIDES, (SOURCE, other) if SIDES[0] == "cordee" else (other, SOURCE), strict=True):
            where = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
            words = command(task, conductor.path, side, folder, gpu=gpu)
            running.append(systems.enter_context(process(words, {"PYTHONPATH": where}, folder / f"said-{side}")))
        conductor.gather(SIDES, 1 if gpu else WORKERS, lambda: all(one.poll() is None for one in running))
        for number in range(-2, pairs):  # two pairs to warm up
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                seconds = conductor.turn(side, chunk)
                if number >= 0:
                    turns.seconds[side].append(seconds)
    return turns


def main() -> None:
    """Measure and print; with --record, write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path, help="the folder that holds the other version's package")
    parser.add_argument("--task", action="append", required=True, help="cnn, gpt, mlp; with --gpu resnet18 and others")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--record", type=Path, help="where to write the result")
    given = parser.parse_args()
    if not (given.other / "cordee" / "__init__.py").exists():
        parser.error(f"{given.other} holds no package cordee")
    if given.gpu:
        from peers.gpu_tasks import TASKS
    else:
        from peers.tasks import TASKS  # type: ignore[assignment]
    result: dict[str, Any] = {}
    for task in given.task:
        chunk = TASKS[task].chunk
        turns = [
            take_turns(task, given.other.resolve(), chunk, given.pairs, gpu=given.gpu) for _ in range(given.starts)
        ]
        figures = summary(chunk, turns)
        result[task] = {**described(), **figures}
        low, high = figures["ratio_median_95"]
        print(
            f"{task:>9}: other {figures['peer_step_ms']:.3f} ms, this {figures['cordee_step_ms']:.3f} ms per step;"
            f" ratio {figures['ratio_median']:.3f}, 95 % {low:.3f} to {high:.3f};"
            f" each start {figures['ratio_median_of_each_start']}",
            flush=True,
        )
        if given.record:
            given.record.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
