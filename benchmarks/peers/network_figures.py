"""From turns to the cells of `network.py`: shares of the limit, and times until a loss is reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

Cell = dict[str, Any]
Curve = Sequence[Sequence[float]]
"""Points of steps and validation loss; a third number is the time until then, where it was measured."""
UNLIMITED = "unlimited"
TURNS = 3
"""A cell's steps are measured in so many turns, to show a range; a turn has at least one step and one merge."""
TOLERANCE = 0.002
"""By so much a validation loss may miss the target: what the rounding of another number of workers does to it."""


def turn_steps(wanted: int, period: int, step_s: float, cell_s: float) -> int:
    """Steps of one turn, where a step takes about `step_s` and a cell should not take much more than `cell_s`."""
    fitting = min(wanted, cell_s / max(step_s, 1e-3)) / TURNS
    return max(1, math.ceil(fitting / period - 0.5)) * period


def speed_of(turns: Sequence[Cell]) -> Cell:
    """The time of a step: median and range over the turns."""
    each = [1e3 * turn["seconds"] / turn["steps"] for turn in turns]
    return {
        "step_ms": round(statistics.median(each), 2),
        "step_ms_range": [round(min(each), 2), round(max(each), 2)],
        "steps": sum(turn["steps"] for turn in turns),
    }


def throughput_cell(turns: Sequence[Cell], limit_step_s: Sequence[float], batch: int, wanted: int) -> Cell:
    """Turns at one speed, and the limit's step times just before and just after them."""
    limit = statistics.fmean(limit_step_s)
    shares = [limit * turn["steps"] / turn["seconds"] for turn in turns]
    sent = [turn["sent_bytes"] / turn["steps"] for turn in turns if turn["sent_bytes"] is not None]
    speed = speed_of(turns)
    return {
        "share": round(statistics.median(shares), 4),
        "share_range": [round(min(shares), 4), round(max(shares), 4)],
        "samples_per_s": round(1e3 * batch / speed["step_ms"], 3),
        **speed,
        "few_steps": speed["steps"] < wanted,
        "sent_bytes_per_step": round(statistics.median(sent)) if sent else None,
        "limit_step_ms": [round(1e3 * one, 2) for one in limit_step_s],
        "turns": [[turn["steps"], round(turn["seconds"], 4)] for turn in turns],
    }


def every_of(every: int, period: int) -> int:
    """Steps from one evaluation to the next: whole periods, and not fewer than `every`."""
    return math.ceil(every / period) * period


def crossing(curve: Curve, target: float, period: int) -> float | None:
    """After how many steps the target is reached; None: not at all.

    Between two evaluations the loss is taken for a straight line. Where replicas merge every few steps, there is no
    common model in between: the next merge counts.
    """
    before: Sequence[float] | None = None
    for point in curve:
        if point[1] <= target + TOLERANCE:
            if before is None:
                return point[0]
            part = (before[1] - target - TOLERANCE) / (before[1] - point[1])
            steps = before[0] + part * (point[0] - before[0])
            return min(point[0], math.ceil(steps / period) * period)
        before = point
    return None


def at_steps(curve: Curve, steps: float) -> float:
    """The time of a curve after so many steps, on a straight line between two evaluations."""
    before: Sequence[float] = (0, 0.0, 0.0)
    for point in curve:
        if point[0] >= steps:
            return before[2] + (point[2] - before[2]) * (steps - before[0]) / (point[0] - before[0])
        before = point
    raise ValueError(f"a curve of {curve[-1][0]} steps has no time after {steps}")


def loss_at(curve: Curve, steps: int) -> float | None:
    """The loss of a curve after so many steps; None: it was not measured then."""
    return next((round(point[1], 5) for point in curve if point[0] == steps), None)


def composed_cell(
    curve: Curve, target: float, period: int, turns: Sequence[Cell], whole: tuple[int, float | None] = (0, None)
) -> Cell:
    """Steps until the loss is reached, from a curve that the link does not change, times this link's step time.

    `whole`: its first steps, if they take longer than the others, and their step time in ms; None: it is not known.
    """
    steps, speed = crossing(curve, target, period), speed_of(turns)
    first, first_ms = whole
    more_s = 0.0 if first_ms is None else first * max(0.0, first_ms - speed["step_ms"]) / 1e3
    seconds = None if steps is None or (first and first_ms is None) else steps * speed["step_ms"] / 1e3 + more_s
    return {
        "seconds_to_loss": None if seconds is None else round(seconds, 2),
        "composed": True,
        **speed,
        **({"first_steps_more_s": round(more_s, 2)} if first else {}),
    }


def trained_cell(curve: Curve, target: float, equal: int, period: int) -> Cell:
    """Of a training at this speed."""
    steps = crossing(curve, target, period)
    return {
        "seconds_to_loss": None if steps is None else round(at_steps(curve, steps), 2),
        "composed": False,
        "steps_to_loss": steps if steps is None else round(steps, 1),
        "loss_at_equal_samples": loss_between(curve, equal),
        "curve": [[int(steps), round(loss, 5), round(seconds, 3)] for steps, loss, seconds in curve],
    }


def at_ends(curve: Curve, windows: Sequence[Cell]) -> list[Sequence[float]]:
    """The curve with its points at the steps that their models have seen.

    The steps of a window are committed together: a turn that ends within one ends with the model of its last step.
    """
    points: dict[float, Sequence[float]] = {}
    for steps, *rest in curve:
        ends = [one["last"] for one in windows if one["first"] <= steps <= one["last"]]
        points.setdefault(ends[0] if ends else steps, rest)
    return [[steps, *rest] for steps, rest in points.items()]


def loss_between(curve: Curve, steps: int) -> float | None:
    """The loss after so many steps, on a straight line between two evaluations; None: the curve ends before."""
    for before, after in pairwise([curve[0], *curve]):
        if before[0] <= steps <= after[0]:
            part = (steps - before[0]) / max(1, after[0] - before[0])
            return round(before[1] + part * (after[1] - before[1]), 5)
    return None


def summary_of(starts: dict[str, dict[str, list[Cell]]], name: str) -> Cell:
    """For each speed: the median time of each contender, and how many times that of the first one `name` takes.

    That ratio is taken in every round by itself: median and range over the rounds in which `name` reached the loss.
    """
    found: Cell = {}
    for speed, row in starts.items():
        rounds: dict[int, dict[str, float]] = {}
        for one, cells in row.items():
            for cell in cells:
                rounds.setdefault(cell["round"], {})[one] = cell["seconds_to_loss"] or math.inf
        ratios = [
            times[name] / min(times.values()) for times in rounds.values() if times.get(name, math.inf) < math.inf
        ]
        reached = {one: [times[one] for times in rounds.values() if times.get(one, math.inf) < math.inf] for one in row}
        found[speed] = {
            "seconds_to_loss": {one: round(statistics.median(each), 2) for one, each in reached.items() if each},
            f"{name} / first": round(statistics.median(ratios), 3) if ratios else None,
            "range": [round(min(ratios), 3), round(max(ratios), 3)] if ratios else None,
            "rounds": len(ratios),
        }
    return found


def reaction_of(decisions: Sequence[Cell], changed_at: Sequence[int]) -> list[int | None]:
    """After how many steps another choice was in use, for each step after which the link's speed was changed.

    What was decided at the end of that step was decided before the change.
    """
    steps: list[int | None] = []
    ends = [*changed_at[1:], math.inf]
    for first, end in zip(changed_at, ends, strict=True):
        changes = [one["step"] - 1 for one in decisions if one["before"] != one["choice"]]
        taken = [step for step in changes if first < step <= end]
        steps.append(taken[0] - first if taken else None)
    return steps


def beside(decisions: Sequence[Cell]) -> list[Cell]:
    """What each decision forecast for its choice, and the step time that was measured until the next one."""
    return [
        {
            "from_step": one["step"],
            "choice": one["choice"],
            "link_mbit": one["link_mbit"],
            "forecast_ms": one["forecast_ms"][one["choice"]],
            "measured_ms": following["measured_ms"],
        }
        for one, following in pairwise(decisions)
        if one["forecast_ms"]  # of the way that it begins with there is none
    ]
