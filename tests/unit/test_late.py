"""Transforms of batches on their device: where they run, and on what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cordee
from cordee.core.errors import DataError
from cordee.diagnose.diverged import find_odd_samples
from cordee.diagnose.preflight.late import check_late
from cordee.feed.batch import Batch
from cordee.feed.feeder import Feeder, Slot
from cordee.feed.late import late_of, read
from cordee.feed.order import Order
from cordee.feed.share import Shares
from cordee.feed.source import Subset
from cordee.group.team import Team

X, Y = np.arange(40, dtype=np.uint8).reshape(20, 2), np.arange(20)


def half(batch: Batch) -> Any:
    return {"x": batch.x.float() / 2, "y": batch.y}


def drawn(batch: Batch) -> Any:
    return {"x": batch.x + cordee.data.draws(batch, 2), "y": batch.y}


def fed(data: Any, *, at_once: int = -1, training: bool = True) -> dict[tuple[int, int], torch.Tensor]:
    """What each sample was in each epoch."""
    order = Order(len(data), 4, seed=1)
    feeder = Feeder(data, order, Shares(), Team(), training=training)
    seen = {}
    for epoch in range(2):
        for step in range(order.steps):
            feeder._at_once = at_once
            batch = feeder.take(Slot(epoch, step))
            seen.update({(epoch, int(one)): batch.x[row] for row, one in enumerate(batch.ids)})
    return seen


def test_each_sample_draws_by_epoch_and_number_on_every_path() -> None:
    data = cordee.data.arrays(X, Y).transform(half).augment(drawn)
    seen, strips = fed(data.train), fed(data.train, at_once=3)
    assert len(seen) == 40
    for (epoch, one), row in seen.items():
        batch = Batch(np.array([one]), {"x": torch.from_numpy(X[[one]]), "y": torch.tensor([one])})
        batch.seed, batch.epoch = 1, epoch
        expected = torch.from_numpy(X[one]) / 2 + cordee.data.draws(batch, 2)[0]
        assert torch.equal(row, expected)
        assert torch.equal(strips[epoch, one], expected)
    assert not torch.equal(seen[0, 5], seen[1, 5])


def test_evaluation_is_transformed_and_not_augmented() -> None:
    data = cordee.data.arrays(X, Y).augment(drawn).transform(half)
    seen = fed(data.train, training=False)
    assert all(torch.equal(row, torch.from_numpy(X[one]) / 2) for (_, one), row in seen.items())


def test_without_transforms_nothing_is_called() -> None:
    data = cordee.data.arrays(X, Y)
    assert late_of(data.train, training=True) == ()


def test_other_sets_are_transformed_and_training_alone_is_augmented() -> None:
    data = cordee.data.arrays(X, Y, validation=0.2, test=0.2).transform(half).augment(drawn)
    assert [len(one.traits.late) for one in data.sets.values()] == [2, 1, 1]


def test_part_of_a_source_is_changed_too() -> None:
    data = cordee.data.arrays(X, Y).transform(half)
    assert torch.equal(read(Subset(data.train, np.array([3, 4])), np.array([1])).x, torch.from_numpy(X[[4]]) / 2)


def test_the_name_of_the_function_counts() -> None:
    data = cordee.data.arrays(X, Y)
    marks = {one.train.fingerprint for one in (data, data.transform(half), data.transform(drawn), data.augment(half))}
    assert len(marks) == 4


def test_odd_numbers_that_a_transform_makes_are_found() -> None:
    data = cordee.data.arrays(X, Y).transform(lambda batch: {"x": 1 / batch.x.float(), "y": batch.y})
    assert "sample 0" in find_odd_samples(data.train, np.arange(4))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda batch: None, "return missing"),
        (lambda batch: batch, "give its fields"),
        (lambda batch: {"x": batch.x[:1], "y": batch.y}, "first dimension"),
        (lambda batch: {"x": batch.x + torch.rand(2), "y": batch.y}, "draws"),
        (lambda batch: {"x": batch.x.flip(0), "y": batch.y}, "beside it"),
    ],
)
def test_wrong_functions_are_explained(function: Any, said: str) -> None:
    data = cordee.data.arrays(X, Y).augment(function)
    with pytest.raises(cordee.errors.CordeeError, match=said):
        check_late(data.train, np.arange(8), "cpu")


def test_no_function() -> None:
    with pytest.raises(DataError, match="a function was expected"):
        cordee.data.arrays(X, Y).augment(0.5)  # type: ignore[arg-type]
