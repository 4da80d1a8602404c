"""Ids and digests of many steps at once are those of one step at a time."""

from __future__ import annotations

import numpy as np
import pytest

from cordee.feed.feeder import Lookahead
from cordee.feed.order import Order, delivered

ORDERS = [
    Order(1003, 101, seed=3),
    Order(1003, 101, seed=3, drop_last=True),
    Order(70_001, 250, seed=1),
    Order(50_000, 128, shuffle="blocks", block=64, window=4),
    Order(500, 7, shuffle="none"),
    Order(103, 50, steps_per_epoch=9),
    Order(40_000, 30_000),
    Order(5, 64),
]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_the_same_as_step_by_step(order: Order) -> None:
    ahead = Lookahead(order)
    places = [(epoch, step) for epoch in (0, 1) for step in range(order.steps)]
    np.random.default_rng(0).shuffle(places[:-3])  # mostly in order, as a training asks
    for epoch, step in places:
        ids = order.ids(epoch, step)
        np.testing.assert_array_equal(ahead.ids(epoch, step), ids)
        assert ahead.digest(epoch, step) == delivered(ids, range(len(ids)))


def test_memory_stays_small_over_many_steps() -> None:
    ahead = Lookahead(Order(10**9, 128))
    for step in range(0, 100_000, 500):
        ahead.ids(0, step)
    assert sum(ids.nbytes for ids, _ in ahead._chunks.values()) < 2**20
