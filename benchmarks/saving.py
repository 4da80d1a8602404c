"""How long a save stalls training: in the background beside a blocking one, interleaved: `python benchmarks/saving.py`.

A model whose parameters and AdamW state take about 500 MB trains on the CPU. Between steps it saves, in turn, as a run
of Cordée does, and by a call that returns when the checkpoint stands on disk. The stall of a background save is what
the training waits for it: to begin it, and before the next update, which must not change what is not copied yet. What
the writer takes of the processor meanwhile is shown too, as the time by which the steps beside it were longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers.machine import described
from torch import nn

from cordee.group.channel import Unconnected
from cordee.state.checkpoint import Checkpoints
from cordee.state.layout import tensor_bytes
from cordee.state.naming import Snapshot, capture
from cordee.train.job import Save
from cordee.train.saving import Saver

RESULTS = Path(__file__).parent / "results" / "saving.json"
WIDTH, DEPTH, BATCH = 2_048, 10, 64
GOAL = 0.05


class Training:
    """A loop that updates between two saves."""

    def __init__(self, folder: Path) -> None:
        """A model with about 42 million parameters."""
        torch.manual_seed(0)
        layers = [part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(BATCH, WIDTH)
        self.saver = Saver(folder / "background", Save(keep_last=1), Unconnected())
        self.blocking = Checkpoints(folder / "blocking", keep_last=1)
        self.number = 0

    def capture(self) -> Snapshot:
        """This moment, live."""
        return capture(self.model, {"main": self.optimizer}, live=True).with_extra(number=self.number)

    def step(self) -> tuple[float, float]:
        """Seconds of one step, and those of it that waited for a save."""
        began = time.perf_counter()
        self.number += 1
        self.model(self.x).square().mean().backward()
        before = time.perf_counter()
        self.saver.before_update()
        waited = time.perf_counter() - before
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began, waited

    def save_in_background(self, usual_s: float) -> dict[str, float]:
        """Stall, and by how much the steps beside it were longer than usual."""
        stall = timed(lambda: self.saver.write(self.number, self.capture, {}))
        longer = 0.0
        while True:
            whole, waited = self.step()
            stall += waited
            longer += whole - waited - usual_s
            if self.saver._checkpoints.under_way is None:
                break
        self.saver.close()
        return {"stall": stall, "longer": longer}

    def save_and_wait(self) -> float:
        """The stall of a save that returns when it stands."""
        return timed(lambda: self.blocking.save(self.capture(), step=self.number, wait=True))


def timed(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(pairs: int) -> dict[str, Any]:
    """Saves of both kinds in turn."""
    with tempfile.TemporaryDirectory(prefix="saving-") as folder:
        training = Training(Path(folder))
        for _ in range(3):
            training.step()
        size = tensor_bytes(training.capture().tensors.values())
        background, blocking = [], []
        for number in range(-1, pairs):  # one pair to warm up
            usual = statistics.median(training.step()[0] for _ in range(3))
            turns = [lambda usual=usual: training.save_in_background(usual), training.save_and_wait]
            found = [turn() for turn in (turns if number % 2 else turns[::-1])]
            if number >= 0:
                background.append(next(one for one in found if isinstance(one, dict)))
                blocking.append(next(one for one in found if not isinstance(one, dict)))
            training.step()
    ratios = sorted(one["stall"] / other for one, other in zip(background, blocking, strict=True))
    return {
        "state_mb": round(size / 1e6),
        "step_ms": round(usual * 1e3, 1),
        "blocking_ms": round(statistics.median(blocking) * 1e3, 1),
        "stall_ms": round(statistics.median(one["stall"] for one in background) * 1e3, 2),
        "steps_longer_ms": round(statistics.median(one["longer"] for one in background) * 1e3, 1),
        "stall_ratio": round(statistics.median(ratios), 4),
        "stall_ratios": [round(one, 4) for one in ratios],
        "goal": GOAL,
    }


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--record", type=Path, default=RESULTS, help="where to write the result")
    given = parser.parse_args()
    result = {**described(), **measure(given.pairs)}
    print(json.dumps(result, indent=1, ensure_ascii=False))
    given.record.parent.mkdir(exist_ok=True)
    given.record.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
