from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from cordee.core.times import PARTS, StepTimes, TimeSplit
from cordee.watch.split import Block, BlockSplit

Steps = dict[int, dict[int, tuple[float, ...]]]


class Both:
    """Feeds the two implementations, and keeps what each says of every step."""

    def __init__(self) -> None:
        self.one: Steps = {}
        self.blocks: Steps = {}
        self.split = TimeSplit(self._step)
        self.block_split = BlockSplit(self._block)

    def expect(self, workers: list[int]) -> None:
        self.split.expect(workers)
        self.block_split.expect(workers)

    def add(self, worker: int, record: dict[str, Any]) -> None:
        self.split.add(worker, record)
        self.block_split.add(worker, record)

    def finish(self) -> None:
        self.split.totals()
        self.block_split.finish()

    def _step(self, step: int, times: Mapping[int, StepTimes]) -> None:
        into = self.one.setdefault(step, {})
        for worker, one in times.items():
            parts = tuple(round(getattr(one, part) * 1e3, 6) for part in PARTS)
            into[worker] = (*parts, one.samples, one.arrived)

    def _block(self, first: int, blocks: Mapping[int, Block]) -> None:
        for worker, block in blocks.items():
            for place in range(len(block.samples)):
                parts = tuple(round(getattr(block, part)[place], 6) for part in PARTS)
                into = self.blocks.setdefault(first + place, {})
                assert worker not in into, "a step was told of twice"
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
def test_blocks_say_what_steps_say(seed: int) -> None:
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


def test_a_worker_that_never_reports_does_not_keep_all_steps_open() -> None:
    told: list[int] = []
    split = BlockSplit(lambda first, blocks: told.append(first))
    split.expect([0, 1])
    chance = random.Random(0)
    for first in range(0, 30_000, 1000):
        split.add(0, record(chance, first, 1000))
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
