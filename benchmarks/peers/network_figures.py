"""From turns to the cells of `network.py`: shares of the limit, and times until a loss is reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

Cell = dict[str, Any]
UNLIMITED = "unlimited"
SLOW_STEP_S, SLOW_STEPS = 3.0, 2
"""Where a step takes so long, a turn has so few of them: the link is deterministic."""
TOLERANCE = 0.002
"""By so much a validation loss may miss the target: what the rounding of another number of workers does to it."""


def steps_of(wanted: int, rounds: int, period: int, step_s: float) -> tuple[int, bool]:
    """Steps of one turn, and whether they are fewer than all rounds need; whole periods, each with one merge."""
    if period == 1 and step_s >= SLOW_STEP_S:
        return min(SLOW_STEPS, wanted), True
    return math.ceil(math.ceil(wanted / rounds) / period) * period, False


def throughput_cell(turns: Sequence[Cell], batch: int, wanted: int) -> Cell:
    """Median and range over the rounds; each turn knows the samples per second of the limit just before it."""
    speeds = [batch * turn["steps"] / turn["seconds"] for turn in turns]
    shares = [speed / turn["limit"] for speed, turn in zip(speeds, turns, strict=True)]
    steps = sum(turn["steps"] for turn in turns)
    sent = [turn["sent_bytes"] / turn["steps"] for turn in turns if turn["sent_bytes"] is not None]
    return {
        "samples_per_s": round(statistics.median(speeds), 3),
        "samples_per_s_range": [round(min(speeds), 3), round(max(speeds), 3)],
        "share": round(statistics.median(shares), 4),
        "share_range": [round(min(shares), 4), round(max(shares), 4)],
        "step_ms": round(1e3 * batch / statistics.median(speeds), 2),
        "sent_bytes_per_step": round(statistics.median(sent)) if sent else None,
        "steps": steps,
        "extrapolated": steps < wanted and any(turn["short"] for turn in turns),
        "turns": list(turns),
    }


def every_of(every: int, period: int, epoch: int) -> int:
    """Steps from one evaluation to the next: not fewer than `every`, whole periods, and the epoch's end is one."""
    whole = [steps for steps in range(period, epoch + 1, period) if steps >= every and epoch % steps == 0]
    return whole[0] if whole else math.ceil(every / period) * period


def crossing(curve: Sequence[Sequence[float]], target: float) -> Sequence[float] | None:
    """The first point (steps, seconds, loss) of a curve at which the target is reached."""
    return next((point for point in curve if point[2] <= target + TOLERANCE), None)


def at_steps(curve: Sequence[Sequence[float]], steps: int) -> float | None:
    """The loss of a curve after so many steps."""
    return next((point[2] for point in curve if point[0] == steps), None)


def loss_cell(curve: Sequence[Sequence[float]], target: float, equal: int, longest: int) -> Cell:
    """Of a training that ended by itself: it reached the target, or had as many steps as it may have."""
    reached = crossing(curve, target)
    return {
        "seconds_to_loss": round(reached[1], 2) if reached else None,
        "steps_to_loss": int(reached[0]) if reached else None,
        "loss_at_equal_samples": at_steps(curve, equal),
        "extrapolated": False,
        "measured_steps": int(curve[-1][0]),
        "not_reached_in_steps": None if reached else longest,
        "curve": [[int(steps), round(seconds, 3), round(loss, 5)] for steps, seconds, loss in curve],
    }


def extrapolated_cell(curve: Sequence[Sequence[float]], model: Cell, target: float, equal: int, longest: int) -> Cell:
    """Of a training that was cut off: losses of the same contender on a faster link, at this link's step time.

    Which samples a step has, and what comes of them, does not depend on the link.
    """
    cell = loss_cell(curve, target, equal, longest)
    steps, seconds, _ = curve[-1]
    starts = [(0, 0.0), *((point[0], point[1]) for point in curve[:-1])]
    paces = [(point[1] - before[1]) / (point[0] - before[0]) for before, point in zip(starts, curve, strict=True)]
    reached, needed = cell["steps_to_loss"], cell["steps_to_loss"] or model["steps_to_loss"]
    if reached is None and needed is not None:
        pace = statistics.median(paces[1:] or paces)
        cell["seconds_to_loss"] = round(seconds + max(needed - steps, 0) * pace, 1)
        cell["steps_to_loss"] = needed
        cell["not_reached_in_steps"] = None
    cell["extrapolated"] = int(steps) < (needed or longest)
    if cell["loss_at_equal_samples"] is None:
        cell["loss_at_equal_samples"] = model["loss_at_equal_samples"]
        cell["loss_from_faster_link"] = True
    return cell
