"""What it costs to start and to end, in time and memory, beside DDP by hand: `python benchmarks/start.py`.

Models of 1, 10, 100 and 1,000 million parameters on two workers of one machine take six steps, with one thread each; on
one GPU (`--device cuda --workers 1 --millions 1300`) a GPT in bf16 does.
Both sides begin as bare commands and end when their last process has gone. What counts is the time beyond making the
model and writing files; the goal is less than 2 s or three steps more than DDP needs, whichever is more. Peak memory is
the largest resident size that the kernel has seen of any worker (VmHWM), the one that writes the files included.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.figures import written
from peers.machine import described
from peers.pace import processor_s

HERE = Path(__file__).parent / "peers"
RESULTS = Path(__file__).parent / "results" / "start.json"
LONGEST_S = 580.0
LOOK_S = 0.05


@dataclass(frozen=True)
class Start:
    """One execution of one side."""

    first_step_s: float
    """From the command to the end of the first step."""
    making_s: float
    """Of this, in making the model."""
    step_s: float
    """The median of the steps after the first."""
    end_s: float
    """From the end of the last step to the end of the last process."""
    writing_s: float
    """Of this, in writing files."""
    peak_mb: float
    """The largest worker's."""
    gpu_mb: float


def peaks(roots: list[subprocess.Popen[bytes]], said: list[Path]) -> dict[int, tuple[str, int]]:
    """Wait for processes and their children; the name and the peak of each, in kB."""
    found: dict[int, tuple[str, int]] = {}
    deadline = time.monotonic() + LONGEST_S
    try:
        while any(root.poll() is None for root in roots):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not ended after {LONGEST_S:.0f} s")
            for pid in {pid for root in roots for pid in processor_s(root.pid)}:
                try:
                    text = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                if peak := re.search(r"VmHWM:\s+(\d+) kB", text):
                    name = re.search(r"Name:\s+(\S+)", text)
                    found[pid] = (name[1] if name else "", int(peak[1]))
            time.sleep(LOOK_S)
        if any(root.returncode for root in roots):
            raise RuntimeError(f"ended with {[root.returncode for root in roots]}")
    except RuntimeError:
        for file in said:
            print(file.read_text(errors="replace")[-2000:], file=sys.stderr)
        raise
    finally:
        for root in roots:
            if root.poll() is None:
                root.kill()
                root.wait()
    return found


def by_hand(millions: float, workers: int, device: str, folder: Path) -> Start:
    """DDP."""
    said = [folder / f"said-{rank}" for rank in range(workers)]
    began = time.time()
    roots = []
    for rank, file in enumerate(said):
        words = [
            sys.executable,
            str(HERE / "start_ddp.py"),
            str(millions),
            str(rank),
            str(workers),
            str(folder),
            device,
        ]
        with file.open("wb") as output:
            roots.append(subprocess.Popen(words, stdout=output, stderr=output))
    used = peaks(roots, said)
    ended = time.time()
    told = [json.loads(file.read_text().splitlines()[-1]) for file in said]
    steps = [max(times) for times in zip(*(one["steps"] for one in told), strict=True)]
    return summed(began, steps, ended, told, [peak for _, peak in used.values()], told[0]["saving_s"])


def cordee(millions: float, workers: int, device: str, folder: Path) -> Start:
    """The same job by the command line."""
    out, file = folder / "run", folder / "said"
    words = [sys.executable, "-m", "cordee", "train", str(HERE / "start_job.py"), "--workers", str(workers), "--out"]
    words += [str(out), "--device", device, "--set", f"millions={millions}", "--set", f"device={device}"]
    words += ["--threads", "1"] if device == "cpu" else ["--plan", "precision=bf16"]
    began = time.time()
    with file.open("wb") as output:
        roots = [subprocess.Popen(words, stdout=output, stderr=output)]
    used = peaks(roots, [file])
    ended = time.time()
    told = [json.loads(line[line.index("{") :]) for line in file.read_text().splitlines() if '"making"' in line]
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    steps = [event["at"] for event in events if event["event"] == "step"]
    result = json.loads((out / "result.json").read_text())
    of_workers = [peak for name, peak in used.values() if re.fullmatch(r"cordee-\d+", name)]
    return summed(began, steps, ended, told, of_workers, result["other_s"].get("saving", 0.0))


def summed(
    began: float, steps: list[float], ended: float, told: list[dict[str, Any]], kilobytes: list[int], writing_s: float
) -> Start:
    """The figures of one execution, from times of day."""
    making = max(one["making"]["ended"] - one["making"]["began"] for one in told)
    apart = [after - before for before, after in itertools.pairwise(steps)]
    gpu = max(one["gpu_bytes"] for one in told) / 1e6
    step_s = statistics.median(apart)
    return Start(steps[0] - began, making, step_s, ended - steps[-1], writing_s, max(kilobytes) / 1e3, gpu)


def measure(millions: float, workers: int, device: str, times: int) -> dict[str, Any]:
    """Both sides in turn, several times; medians, and what they cost beyond making the model and writing files."""
    sides: dict[str, list[Start]] = {"cordee": [], "ddp": []}
    for number in range(times):
        order = ("cordee", "ddp") if number % 2 == 0 else ("ddp", "cordee")
        for side in order:
            with tempfile.TemporaryDirectory(prefix="start-") as folder:
                run = cordee if side == "cordee" else by_hand
                sides[side].append(run(millions, workers, device, Path(folder)))
    middle = {
        side: {name: round(statistics.median(getattr(one, name) for one in all_), 3) for name in vars(all_[0])}
        for side, all_ in sides.items()
    }
    ours, theirs = middle["cordee"], middle["ddp"]
    start = (ours["first_step_s"] - ours["making_s"]) - (theirs["first_step_s"] - theirs["making_s"])
    end = (ours["end_s"] - ours["writing_s"]) - (theirs["end_s"] - theirs["writing_s"])
    goal = max(2.0, 3 * ours["step_s"])
    memory = {"host": round(ours["peak_mb"] / theirs["peak_mb"], 3)}
    if theirs["gpu_mb"]:
        memory["gpu"] = round(ours["gpu_mb"] / theirs["gpu_mb"], 3)
    return {
        **middle,
        "start_beyond_s": round(start, 3),
        "end_beyond_s": round(end, 3),
        "goal_s": round(goal, 3),
        "memory_ratio": memory,
        "memory_goal": 1.05,
        "within": start < goal and end < goal and max(memory.values()) <= 1.05,
    }


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--millions", type=float, action="append")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", type=Path, default=RESULTS, help="where to write the result")
    given = parser.parse_args()
    result = json.loads(given.record.read_text()) if given.record.exists() else {}
    for millions in given.millions or (1, 10, 100, 1_000):
        figures = measure(millions, given.workers, given.device, given.times)
        key = f"{millions:g} million parameters, {given.workers} on {given.device}"
        result[key] = {**described(), "times": given.times, **figures}
        print(
            f"{key}: start {figures['start_beyond_s']:+.2f} s, end {figures['end_beyond_s']:+.2f} s beyond DDP's (goal "
            f"{figures['goal_s']:.1f}), memory {figures['memory_ratio']}, step {figures['cordee']['step_s']:.3f} s "
            f"beside {figures['ddp']['step_s']:.3f}: {'within' if figures['within'] else 'NOT within'} the goals",
            flush=True,
        )
        given.record.parent.mkdir(exist_ok=True)
        given.record.write_text(written(result))


if __name__ == "__main__":
    main()
