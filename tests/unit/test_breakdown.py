from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from cordee.core.times import PARTS, Block, Breakdown, TimeTotals, without_start
from records import times_of

Steps = dict[int, dict[int, tuple[float, ...]]]


class Both:
    """Feeds the breakdown, and beside it the same rule applied step by step."""

    def __init__(self) -> None:
        self.one: Steps = {}
        self.blocks: Steps = {}
        self._stamps: dict[int, dict[int, tuple[float, ...]]] = {}
        """By step and worker: data, compute, blocked, waited, samples, arrived."""
        self.totals = TimeTotals()
        self.sums: dict[str, dict[str, float]] = {}
        self.breakdown = Breakdown(self._block)

    def expect(self, workers: list[int]) -> None:
        for reader in (self.breakdown, self.totals):
            reader.expect(workers)

    def add(self, worker: int, record: dict[str, Any]) -> None:
        names = ("data_ms", "compute_ms", "blocked_ms", "waited_ms", "samples", "arrived")
        for step, stamps in enumerate(zip(*(record[name] for name in names), strict=True), start=record["from"]):
            self._stamps.setdefault(step, {})[worker] = stamps
        event = times_of(worker, record)
        self.breakdown.add(event)
        self.totals.add(event)

    def finish(self) -> None:
        self.breakdown.finish()
        for step, stamps in self._stamps.items():
            last = max(arrived for *_, arrived in stamps.values())
            for worker, (data, compute, blocked, waited, samples, arrived) in stamps.items():
                waiting = waited + max(0.0, min(blocked - waited, 1e3 * (last - arrived)))
                parts = (data, compute, 0.0, blocked - waiting, waiting)  # in the order of PARTS
                self.one.setdefault(step, {})[worker] = (*(round(part, 6) for part in parts), samples, arrived)

    def _block(self, first: int, blocks: Mapping[int, Block]) -> None:
        for worker, block in (blocks if self.sums else without_start(blocks)).items():
            sums = self.sums.setdefault(str(worker), dict.fromkeys(PARTS, 0.0))
            for part in PARTS:
                sums[part] += sum(getattr(block, part)) / 1e3
        for worker, block in blocks.items():
            for place in range(len(block.samples)):
                parts = tuple(round(getattr(block, part)[place], 6) for part in PARTS)
                into = self.blocks.setdefault(first + place, {})
                assert worker not in into, "a step was closed twice"
                into[worker] = (*parts, block.samples[place], block.arrived[place])


def record(chance: random.Random, first: int, count: int) -> dict[str, Any]:
    arrived = [1000.0 + step * 0.1 + round(chance.random() * 0.05, 6) for step in range(first, first + count)]
    lists = {
        name: [round(chance.random() * 40, 4) for _ in arrived] for name in ("data_ms", "compute_ms", "blocked_ms")
    }
    waited = [round(chance.random() * blocked, 4) for blocked in lists["blocked_ms"]]
    samples = [chance.randrange(9) for _ in arrived]
    return {"from": first, **lists, "waited_ms": waited, "samples": samples, "arrived": arrived}


@pytest.mark.parametrize("seed", range(20))
def test_blocks_hold_what_the_rule_gives_step_by_step(seed: int) -> None:
    """Workers report in pieces of any size and order; one is lost on the way with its last reports."""
    chance = random.Random(seed)
    both = Both()
    workers = [0, 1, 2]
    both.expect(workers)
    reached = dict.fromkeys(workers, 0)
    last = {0: 60, 1: 60, 2: chance.randrange(1, 50)}
    while any(reached[one] < last[one] for one in reached):
        worker = chance.choice([one for one in reached if reached[one] < last[one]])
        count = min(chance.randrange(1, 12), last[worker] - reached[worker])
        both.add(worker, record(chance, reached[worker], count))
        reached[worker] += count
        if 2 in workers and reached[2] == last[2]:
            workers = [0, 1]
            both.expect(workers)
    both.finish()
    assert sorted(both.blocks) == list(range(60))
    assert both.blocks == both.one
    for worker, parts in both.totals.totals().items():
        assert both.sums[worker] == pytest.approx(parts, abs=1e-4)


def test_a_worker_that_never_reports_does_not_keep_all_steps_open() -> None:
    told: list[int] = []
    split = Breakdown(lambda first, blocks: told.append(first))
    split.expect([0, 1])
    chance = random.Random(0)
    for first in range(0, 30_000, 1000):
        split.add(times_of(0, record(chance, first, 1000)))
    assert told and told[0] == 0
    split.finish()
    assert sum(1 for _ in told) >= 30


def test_steps_that_are_missing_are_left_out() -> None:
    both = Both()
    both.expect([0])
    chance = random.Random(1)
    both.add(0, record(chance, 0, 3))
    both.add(0, record(chance, 10, 2))
    both.finish()
    assert sorted(both.blocks) == [0, 1, 2, 10, 11]
    assert both.blocks == both.one
