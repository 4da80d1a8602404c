from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from cordee.core.times import PARTS, Block, Breakdown, TimeTotals
from cordee.watch.accounts import Accounts, Missing, Piece
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
        self.accounts = Accounts([], self._piece, lambda missing: None)
        self.sums: dict[str, dict[str, float]] = {}
        self.breakdown = Breakdown(self._block)

    def expect(self, workers: list[int]) -> None:
        for reader in (self.breakdown, self.totals, self.accounts):
            reader.expect(workers)

    def add(self, worker: int, record: dict[str, Any]) -> None:
        names = ("data_ms", "compute_ms", "blocked_ms", "waited_ms", "samples", "arrived")
        for step, stamps in enumerate(zip(*(record[name] for name in names), strict=True), start=record["from"]):
            self._stamps.setdefault(step, {})[worker] = stamps
        event = times_of(worker, record)
        self.breakdown.add(event)
        self.totals.add(event)
        self.accounts.report(event)

    def finish(self) -> None:
        self.breakdown.finish()
        self.accounts.finish()
        for step, stamps in self._stamps.items():
            last = max(arrived for *_, arrived in stamps.values())
            for worker, (data, compute, blocked, waited, samples, arrived) in stamps.items():
                waiting = waited + max(0.0, min(blocked - waited, 1e3 * (last - arrived)))
                parts = (data, compute, 0.0, blocked - waiting, waiting)  # in the order of PARTS
                self.one.setdefault(step, {})[worker] = (*(round(part, 6) for part in parts), samples, arrived)

    def _piece(self, piece: Piece) -> None:
        for worker, block in piece.blocks.items():
            sums = self.sums.setdefault(str(worker), dict.fromkeys(PARTS, 0.0))
            for part in PARTS:
                sums[part] += sum(getattr(block, part)) / 1e3

    def _block(self, first: int, blocks: Mapping[int, Block]) -> None:
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


# ------------------------------------------------------------- reports beside what was committed


def reported(*samples: int, first: int = 0) -> dict[str, Any]:
    """What a worker says of steps in which it had these samples."""
    same = {name: [1.0] * len(samples) for name in ("data_ms", "compute_ms", "blocked_ms")}
    arrived = [100.0 + step for step in range(first, first + len(samples))]
    return {"from": first, **same, "waited_ms": [0.0] * len(samples), "samples": list(samples), "arrived": arrived}


class Told:
    """Accounts of three workers, ten samples a step, and what they tell."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, list[int], int, bool]] = []
        self.missing: list[Missing] = []
        self.accounts = Accounts([0, 1, 2], self._piece, self.missing.append)

    def _piece(self, piece: Piece) -> None:
        count = len(next(iter(piece.blocks.values())).samples)
        self.pieces.append((piece.first, sorted(piece.blocks), count, piece.whole))


def test_what_a_lost_worker_did_not_report_is_what_the_steps_lack() -> None:
    told = Told()
    accounts = told.accounts
    for step in range(1, 6):
        accounts.commit(step, 10)
    for worker, share in ((0, 4), (1, 3), (2, 3)):
        accounts.report(times_of(worker, reported(share, share)))
    accounts.lose(0)
    accounts.report(times_of(1, reported(3, 3, 5, first=2)))  # in the last of these steps it is gone
    accounts.report(times_of(2, reported(3, 3, 5, first=2)))
    accounts.expect([1, 2])
    assert told.pieces == [(0, [0, 1, 2], 2, True), (2, [1, 2], 2, False), (4, [1, 2], 1, True)]
    assert told.missing == [Missing(frozenset(), frozenset({0}), 2, 8)]


def test_a_step_that_was_told_of_late_is_waited_for() -> None:
    """The worker that speaks was lost before it told of a step; another one tells of it after the regrouping."""
    told = Told()
    accounts = told.accounts
    accounts.report(times_of(1, reported(3)))
    accounts.report(times_of(2, reported(3)))
    accounts.lose(0)
    accounts.expect([1, 2])
    assert told.pieces == []
    accounts.commit(1, 10)
    assert told.pieces == [(0, [1, 2], 1, False)] and told.missing == [Missing(frozenset(), frozenset({0}), 1, 4)]


def test_of_two_that_were_lost_together_nobody_knows_whose_the_rest_was() -> None:
    told = Told()
    accounts = told.accounts
    accounts.commit(1, 10)
    accounts.report(times_of(2, reported(3)))
    accounts.lose(0)
    accounts.lose(1)
    accounts.expect([2])
    assert told.missing == [Missing(frozenset(), frozenset({0, 1}), 1, 7)]


def test_whoever_was_lost_earlier_has_no_part_in_what_is_missing_later() -> None:
    told = Told()
    accounts = told.accounts
    for step in (1, 2, 3):
        accounts.commit(step, 10)
    accounts.lose(0)
    accounts.expect([1, 2])
    accounts.report(times_of(1, reported(5)))
    accounts.report(times_of(2, reported(5, 5, 10)))
    accounts.lose(1)
    accounts.expect([2])
    assert told.missing == [Missing(frozenset(), frozenset({1}), 1, 5)]
    assert told.pieces[-1] == (2, [2], 1, True)


def test_a_run_that_just_stops_lacks_reports_of_those_who_were_there() -> None:
    told = Told()
    for step in (1, 2, 3):
        told.accounts.commit(step, 10)
    told.accounts.report(times_of(0, reported(4)))
    told.accounts.finish()
    assert told.pieces == [(0, [0], 1, False)]
    everybody = frozenset({0, 1, 2})
    assert told.missing == [Missing(everybody - {0}, frozenset(), 1, 6), Missing(everybody, frozenset(), 2, 20)]
