"""What a slow link costs: the least time of a sum over it, how long to measure it, and the figures of a result."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from peers.figures import interval

OURS = "cordee"
TURN_S = 1.0
"""How long a turn should last, where a step is not longer by itself."""
ROUNDS, FEW_ROUNDS, LONG_STEP_S = 12, 6, 2.0
"""Rounds of a speed, and how many where a step takes so long. Both are full cycles of the orders of three systems."""


@dataclass
class Rounds:
    """What was taken down of the turns at one speed, by system, round after round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    sent: dict[str, list[int]] = field(default_factory=dict)
    """Bytes that the host which sent most has sent, headers included."""

    def add(self, system: str, seconds: float, sent: int) -> None:
        """One more turn."""
        self.seconds.setdefault(system, []).append(seconds)
        self.sent.setdefault(system, []).append(sent)


def least_s(gradient_bytes: int, hosts: int, bit_s: float) -> float:
    """The least time of an all-reduce: each link carries 2 (n - 1) / n of the bytes, each way."""
    return 2 * (hosts - 1) / hosts * gradient_bytes * 8 / bit_s


def steps_a_turn(chunk: int, least: float) -> int:
    """Steps that take about `TURN_S`, of which `chunk` would do so without a network."""
    return max(1, round(TURN_S / (TURN_S / chunk + least)))


def rounds_of(least: float) -> int:
    """How often every system has its turn in a full run."""
    return ROUNDS if least < LONG_STEP_S else FEW_ROUNDS


def order_of(systems: Sequence[str], number: int) -> tuple[str, ...]:
    """Who comes after whom in a round: all orders in turn, so that nobody always has the same one before him."""
    orders = list(itertools.permutations(systems))
    return orders[number % len(orders)]


def summary(rounds: Rounds, steps: int, least: float) -> dict[str, Any]:
    """The figures of one task at one speed; `steps` are those of a turn."""
    ours = rounds.seconds[OURS]
    systems: dict[str, dict[str, Any]] = {}
    for system, seconds in rounds.seconds.items():
        step = statistics.median(seconds) / steps
        systems[system] = {
            "step_ms": round(step * 1e3, 3),
            "link_busy": round(least / step, 4),
            "sent_bytes_a_step": round(statistics.median(rounds.sent[system]) / steps),
        }
        if system != OURS:
            systems[system] |= compared([theirs / own for theirs, own in zip(seconds, ours, strict=True)])
        systems[system]["turns_s"] = [round(one, 4) for one in seconds]
    return {"steps_a_turn": steps, "pairs": len(ours), "least_ms": round(least * 1e3, 3), "systems": systems}


def compared(ratios: Sequence[float]) -> dict[str, Any]:
    """The ratios of all rounds, their median and mean, each with its interval."""
    return {
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_median_95": interval(ratios, np.median),
        "ratio_mean": round(statistics.fmean(ratios), 4),
        "ratio_mean_95": interval(ratios, np.mean),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }
