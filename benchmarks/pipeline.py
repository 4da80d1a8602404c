"""A pipeline of two stages: its step beside its forecast, and beside torch's: `python benchmarks/pipeline.py`.

A GPT of 4.9 million parameters, cut at the same block on both sides, 1F1B with four micro-batches. Cordée and the peer
(`torch.distributed.pipelining` by hand) are alive at once and take turns of a few steps, as in `overhead.py`; a pair
gives one ratio, the peer's time over Cordée's. Above 1, Cordée is the faster one.

The forecast is the simulated table, by the medians of what each stage took in more than 20 steps of the same run.
Beside it stands the median of more than 20 steps after those, from the first action of the table to the end of the
last.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from peers.figures import SIDES, Turns, summary, written
from peers.machine import described
from peers.pace import Conductor
from peers.systems import HERE, WORKERS, Peer, process, started
from peers.tasks import TASKS

from cordee.core.eventlog import read_events
from cordee.core.events import PipelineEvent, PipelineStepEvent

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
TASK, STAGES = "gpt", "letters+blocks.3"
PEER = Peer("torch.distributed.pipelining by hand: PipelineStage and Schedule1F1B over gloo", "pipelining.py")
PLAN = "pipeline=2,micro_batches=4"
GOAL, NEAR = 0.97, 0.15


def take_turns(pairs: int, schedule: str) -> tuple[Turns, dict[str, Any]]:
    """One start of both sides: the times of their turns, and forecast and measurement of Cordée's step."""
    turns, chunk = Turns(), TASKS[TASK].chunk
    with tempfile.TemporaryDirectory(prefix="pipeline-") as name:
        folder = Path(name)
        with contextlib.ExitStack() as systems, Conductor(folder) as conductor:  # both end when it has gone
            command = [sys.executable, "-m", "cordee", "train", str(HERE / "job.py"), "--workers", str(WORKERS)]
            command += ["--threads", "1", "--out", str(folder / "run"), "--plan", f"{PLAN},schedule={schedule}"]
            for pair in (f"task={TASK}", f"turns={conductor.path}", f"stages={STAGES}"):
                command += ["--set", pair]
            running = [
                systems.enter_context(process(command, {}, folder / "said")),
                systems.enter_context(started(PEER, TASK, conductor.path, "peer", folder)),
            ]
            conductor.gather(SIDES, WORKERS, lambda: all(one.poll() is None for one in running))
            for number in range(-2, pairs):  # two pairs to warm up
                for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                    seconds = conductor.turn(side, chunk)
                    if number >= 0:
                        turns.seconds[side].append(seconds)
        return turns, of_step(folder / "run")


def of_step(run: Path) -> dict[str, Any]:
    """The last forecast of a run, and the median of the steps after it."""
    plan: PipelineEvent | None = None
    steps: dict[int, list[PipelineStepEvent]] = defaultdict(list)
    for event in read_events(run / "events.jsonl"):
        if isinstance(event, PipelineEvent):
            plan = event
            steps.clear()
        elif isinstance(event, PipelineStepEvent):
            steps[event.step].append(event)
    assert plan is not None, "the run was too short for a forecast"
    spans = []
    for told in steps.values():
        if len(told) == WORKERS:
            moments = [(1e3 * one.began + begin, 1e3 * one.began + end) for one in told for begin, end in one.spans]
            spans.append(max(end for _, end in moments) - min(begin for begin, _ in moments))
    measured = statistics.median(spans)
    return {
        "forecast_ms": round(plan.forecast_ms, 4),
        "measured_ms": round(measured, 4),
        "off": round(measured / plan.forecast_ms - 1, 4),
        "steps": len(spans),
        "stage_ms": [[round(one, 4) for one in row] for row in plan.stage_ms],
    }


def main() -> None:
    """Measure and print; with --record, write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one start")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=12, help="turns of each side per start; at least 12")
    parser.add_argument("--schedule", default="1f1b", help="Cordée's schedule; the peer's is 1F1B")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    starts = [take_turns(max(12, given.pairs), given.schedule) for _ in range(1 if given.quick else given.starts)]
    figures = summary(TASKS[TASK].chunk, [turns for turns, _ in starts])
    del figures["processor_step_ms"], figures["processor_share_while_waiting"]  # which these turns do not measure
    forecasts = [told for _, told in starts]
    result = {"goal": GOAL, "forecast_goal": NEAR, **described(), "peer": PEER.words, **figures, "steps": forecasts}
    low, high = figures["ratio_median_95"]
    print(
        f"peer {figures['peer_step_ms']:.1f} ms, Cordée {figures['cordee_step_ms']:.1f} ms per step; ratio "
        f"{figures['ratio_median']:.3f}, 95 % {low:.3f} to {high:.3f}; goal {GOAL}"
    )
    for told in forecasts:
        print(
            f"forecast {told['forecast_ms']:.1f} ms, measured {told['measured_ms']:.1f} ms ({told['off']:+.1%}, median "
            f"of {told['steps']} steps); goal within {NEAR:.0%}"
        )
    if given.record:
        RESULTS.write_text(written(result))


if __name__ == "__main__":
    main()
