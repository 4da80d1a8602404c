"""Random schedules of workers: each sample once, and one order, whoever computes it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cordee.feed.order import SHUFFLES, Order, delivered, delivered_each
from cordee.feed.share import Share
from cordee.train.ledger import Ledger

SCHEDULES, EACH, MOST_WORKERS = 10_000, 1_000, 16


def ledger_of(order: Order, schedule: random.Random) -> tuple[Ledger, list[np.ndarray]]:
    """Two epochs; after any step other workers may go on, also more of them than a batch has samples."""
    ledger, seen = Ledger(), []
    workers: tuple[int, ...] = (0,)
    share = Share()
    for epoch in range(2):
        for step in range(order.steps):
            if schedule.random() < 0.5:
                workers = tuple(schedule.sample(range(2 * MOST_WORKERS), schedule.randint(1, MOST_WORKERS)))
                parts = tuple(float(schedule.randint(0, 5)) for _ in workers) if schedule.random() < 0.5 else ()
                rule = schedule.choice(("equal", "proportional", "sampled"))
                if rule == "equal" or not any(parts):
                    parts = ()
                share = Share("equal" if rule == "proportional" and not parts else rule, parts, schedule.randint(0, 9))
                order = Order(**{name: one for name, one in order.describe().items() if name != "form"})  # type: ignore[arg-type]
            whole = order.ids(epoch, step)
            digest = count = 0
            for index in range(len(workers)):
                positions = share.positions(len(whole), workers, index, (epoch, step, 0))
                ids = whole[positions.start : positions.stop] if isinstance(positions, range) else whole[positions]
                seen.append(ids)
                digest, count = (digest + delivered(ids, positions)) % 2**64, count + len(ids)
            expected = len(whole), delivered_each(whole, order.batch)[0]
            ledger.enter((epoch, step, order.steps), count, digest, expected)
    return ledger, seen


@pytest.mark.thinned(5)
@pytest.mark.parametrize("first", range(0, SCHEDULES, EACH))
def test_no_sample_is_lost_or_repeated_whatever_the_workers(first: int) -> None:
    """Ten sets of schedules, each of another size of data and batch; a schedule also goes on from a saved order."""
    draw = random.Random(first)
    samples, batch = draw.randint(20, 60), draw.randint(5, 20)
    order = Order(samples, batch, seed=first, shuffle=SHUFFLES[first // EACH % len(SHUFFLES)], block=7, window=2)
    alone = Ledger()
    for epoch in range(2):
        for step in range(order.steps):
            ids = order.ids(epoch, step)
            entry = len(ids), delivered(ids, range(len(ids)))
            alone.enter((epoch, step, order.steps), *entry, entry)
    for number in range(first, first + EACH):
        ledger, seen = ledger_of(order, random.Random(number))
        assert (ledger.lost, ledger.repeated, ledger.samples) == (0, 0, 2 * samples), f"schedule {number}"
        assert np.array_equal(np.bincount(np.concatenate(seen), minlength=samples), np.full(samples, 2))
        assert ledger.order_sha256 == alone.order_sha256, f"schedule {number}"
