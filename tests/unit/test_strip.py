"""Small batches of many steps are gathered at once, and are the same as one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cordee.feed import feeder as feeder_module
from cordee.feed.arrays import ArraySource
from cordee.feed.feeder import Feeder, Slot, steps_at_once
from cordee.feed.order import Order, delivered
from cordee.feed.share import Share, Shares
from cordee.feed.source import Source, Subset
from cordee.group.team import Team

X, Y = torch.randn(103, 4), torch.arange(103)


class SlowSource(ArraySource):
    """Counts its gathers."""

    gathers = 0

    def gather(self, ids: Any, out: Any = None) -> Any:
        self.gathers += 1
        return super().gather(ids, out)


def fed(source: Source, *, at_once: int, epochs: int = 3, **more: Any) -> list[tuple[Any, ...]]:
    order = Order(len(source), 8, seed=1)
    feeder = Feeder(source, order, Shares(((0, Share(seed=1)),)), Team(), **more)
    taken = []
    for epoch in range(epochs):
        for step in range(order.steps):
            feeder._at_once = at_once
            batch = feeder.take(Slot(epoch, step))
            fields = batch.fields.values() if isinstance(batch.fields, dict) else batch.fields
            assert batch.digest in (None, delivered(batch.ids, batch.positions))
            taken.append(
                (
                    (batch.epoch, batch.step, batch.weight, batch.borrowed, batch.last, batch.positions),
                    batch.ids.tolist(),
                    [one.tolist() for one in fields],
                    batch.digest is not None,
                )
            )
            if (epoch, step) == (1, 5):
                feeder.forget()
    feeder.close()
    return taken


SOURCES = [ArraySource([X, Y]), ArraySource({"x": X, "y": Y}), Subset(ArraySource([X, Y]), np.arange(5, 80))]


@pytest.mark.parametrize("source", SOURCES)
def test_they_are_the_same(source: Source) -> None:
    one, many = fed(source, at_once=0), fed(source, at_once=7)
    assert [row[:-1] for row in one] == [row[:-1] for row in many]
    assert not any(row[-1] for row in one) and sum(row[-1] for row in many) > 0.8 * len(many)


def test_only_small_ones_that_are_quick_to_read() -> None:
    assert steps_at_once((X[:8], Y[:8])) == 32
    assert steps_at_once((torch.zeros(100_000),)) == 0 and steps_at_once({"nested": {"x": X}}) == 0
    assert steps_at_once(()) == 0


def test_a_slow_source_is_read_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder_module, "LONGEST_S", 0.0)
    source = SlowSource([X, Y])
    feeder = Feeder(source, Order(len(source), 8, seed=1), Shares(((0, Share(seed=1)),)), Team())
    for step in range(12):
        feeder.take(Slot(0, step))
    assert feeder._at_once == 0 and feeder._strip.keys() <= {Slot(0, step) for step in range(12)}
    feeder.take(Slot(1, 0))
    before = source.gathers
    feeder.take(Slot(1, 1))
    assert source.gathers == before + 1
