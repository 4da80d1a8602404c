"""Random schedules of workers: each sample once, and one order, whoever computes it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from cordee.feed.locality import NOWHERE, Held
from cordee.feed.order import SHUFFLES, Order, delivered
from cordee.feed.permute import Ids
from cordee.feed.share import Share
from cordee.train.ledger import Ledger

SCHEDULES, EACH, MOST_WORKERS, HOSTS = 10_000, 500, 16, 3
RULES = ("equal", "proportional", "sampled", "local")
OFTEN = (45, 42, 12, 1)
"""What is drawn costs ten times as much to work out as what lies in runs, and what is local ten times as much again."""
NUMBERS = range(2 * MOST_WORKERS)


class Taken:
    """The parts of a step that its workers take: each works out its own, by itself."""

    def __init__(self, draw: random.Random) -> None:
        """One worker, and equal shares."""
        self._draw = draw
        self.workers: tuple[int, ...] = (0,)
        self.share, self.held = Share(), None
        self._runs: dict[int, list[int]] = {}

    def change(self) -> None:
        """Other workers, which may be more than a batch has samples, and another rule."""
        draw = self._draw
        self.workers = tuple(draw.sample(NUMBERS, draw.randint(1, MOST_WORKERS)))
        rule = draw.choices(RULES, OFTEN)[0]
        parts: tuple[float, ...] = ()
        if rule != "equal" and draw.random() < 0.75:
            parts = tuple(float(draw.randint(0, 5)) for _ in range(draw.randint(1, MOST_WORKERS)))
        if rule == "proportional" and not any(parts):
            rule = "equal"
        self.share = Share(rule, parts if any(parts) else (), draw.randint(0, 9))
        self._runs = {}

    def positions(self, size: int, key: tuple[int, int, int]) -> list[int]:
        """All of them, worker after worker; what lies in runs is the same in each step of one size."""
        if (found := self._runs.get(size)) is not None:
            return found
        held = None
        if self.share.rule == "local":
            masks = np.array(self._draw.choices(range(2**HOSTS), k=size))
            held = Held(masks, tuple(self._draw.choices((*range(HOSTS), NOWHERE), k=len(self.workers))))
        places: list[int] = []
        for index in range(len(self.workers)):
            part = self.share.positions(size, self.workers, index, key, held)
            places += part if isinstance(part, range) else part.tolist()
        if self.share.in_runs:
            self._runs[size] = places
        return places


def whole_batches(order: Order) -> dict[tuple[int, int], tuple[Ids, tuple[int, int]]]:
    """The ids of each step of two epochs; and how many they are, with the digest of one process that has them all."""
    steps = ((epoch, step) for epoch in range(2) for step in range(order.steps))
    batches = {place: order.ids(*place) for place in steps}
    return {place: (ids, (len(ids), delivered(ids, range(len(ids))))) for place, ids in batches.items()}


def ledger_of(whole: Any, steps: int, order: Order, draw: random.Random) -> tuple[Ledger, Ids]:
    """Two epochs; after any step other workers may go on. From some step on the order is one that was saved before."""
    ledger, seen, taken = Ledger(), [], Taken(draw)
    saved = {name: one for name, one in order.describe().items() if name != "form"}
    epoch, step = resumed = draw.randrange(2), draw.randrange(steps)
    rest = Order(**saved).span(epoch, range(step, steps))  # type: ignore[arg-type]
    for place, (ids, expected) in whole.items():
        if place[0] == epoch and place >= resumed:
            ids, rest = rest[: len(ids)], rest[len(ids) :]
        if draw.random() < 0.5:
            taken.change()
        positions = np.array(taken.positions(len(ids), (*place, 0)), np.int64)
        # The digest of a step is the sum of those of its shares, in any order: see test_digest.py.
        seen.append(received := ids[positions])
        ledger.enter((*place, steps), len(received), delivered(received, positions), expected)
    return ledger, np.concatenate(seen)


@pytest.mark.parametrize("first", range(0, SCHEDULES, EACH))
def test_no_sample_is_lost_or_repeated_whatever_the_workers(first: int) -> None:
    """Twenty sets of schedules, each of another size of data and batch, also of batches smaller than the workers."""
    draw = random.Random(first)
    batch = draw.randint(1, 4) if first // EACH % 4 == 3 else draw.randint(5, 20)
    samples = draw.randint(3, 6) * batch + draw.randrange(batch) if batch < 5 else draw.randint(20, 60)
    order = Order(samples, batch, seed=first, shuffle=SHUFFLES[first // EACH % len(SHUFFLES)], block=7, window=2)
    whole, alone = whole_batches(order), Ledger()
    for place, (_, expected) in whole.items():
        alone.enter((*place, order.steps), *expected, expected)
    for number in range(first, first + EACH):
        ledger, seen = ledger_of(whole, order.steps, order, random.Random(number))
        assert (ledger.lost, ledger.repeated, ledger.samples) == (0, 0, 2 * samples), f"schedule {number}"
        assert np.array_equal(np.bincount(seen, minlength=samples), np.full(samples, 2)), f"schedule {number}"
        assert ledger.order_sha256 == alone.order_sha256, f"schedule {number}"
