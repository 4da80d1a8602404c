"""From the times of turns to the figures of a result."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SIDES = ("cordee", "peer")


def _no_time() -> dict[str, float]:
    return dict.fromkeys(SIDES, 0.0)


@dataclass
class Turns:
    """What was taken down of all pairs of one start, by side, in seconds."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    used_s: dict[str, float] = field(default_factory=_no_time)
    """Of the processors, by all processes of the side, in its own turns."""
    used_while_waiting_s: dict[str, float] = field(default_factory=_no_time)
    """The same in the other's turns."""


def interval(ratios: Sequence[float], statistic: Any, draws: int = 10_000) -> list[float]:
    """The 95 % interval of a statistic of the pairs' ratios, by drawing the pairs again."""
    drawn = np.random.default_rng(0).choice(np.asarray(ratios), (draws, len(ratios)))
    return [round(float(value), 4) for value in np.percentile(statistic(drawn, axis=1), [2.5, 97.5])]


def summary(steps: int, starts: Sequence[Turns]) -> dict[str, Any]:
    """The figures of one task against one peer; `steps` are those of a turn."""
    seconds = {side: [one for turns in starts for one in turns.seconds[side]] for side in SIDES}
    ratios = [theirs / ours for theirs, ours in zip(seconds["peer"], seconds["cordee"], strict=True)]
    of_starts = [len(turns.seconds["peer"]) for turns in starts]
    milliseconds = 1e3 / steps
    used = {side: sum(turns.used_s[side] for turns in starts) for side in SIDES}
    idle = {side: sum(turns.used_while_waiting_s[side] for turns in starts) for side in SIDES}
    return {
        "starts": len(starts),
        "pairs": len(ratios),
        "peer_step_ms": round(statistics.median(seconds["peer"]) * milliseconds, 4),
        "cordee_step_ms": round(statistics.median(seconds["cordee"]) * milliseconds, 4),
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_median_95": interval(ratios, np.median),
        "ratio_mean": round(statistics.fmean(ratios), 4),
        "ratio_mean_95": interval(ratios, np.mean),
        "ratio_median_of_each_start": [
            round(float(np.median(part)), 4) for part in np.split(np.asarray(ratios), np.cumsum(of_starts)[:-1])
        ],
        "processor_step_ms": {side: round(used[side] * milliseconds / len(ratios), 4) for side in SIDES},
        "processor_share_while_waiting": {
            "cordee": round(idle["cordee"] / sum(seconds["peer"]), 4),
            "peer": round(idle["peer"] / sum(seconds["cordee"]), 4),
        },
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def written(result: dict[str, Any]) -> str:
    """A result as it is recorded: JSON with each list on one line."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    return re.sub(r"\[([^\[\]{}\"]*)\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"
