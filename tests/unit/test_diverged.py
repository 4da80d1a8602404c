"""A loss that is not a number: what is named as its cause, by the step and by the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cordee.core.errors import DivergedError
from cordee.feed.data import arrays
from cordee.train.session import Session

CAUSE = "learning rate"


def train(data: Any, *, lr: float = 0.01, factor: float = 1.0, plan_batch: int = 200) -> str:
    """What is said when this training diverges."""
    torch.manual_seed(0)
    session = Session()
    model = session.prepare(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with pytest.raises(DivergedError) as caught:
        for batch in session.batches(data, batch=plan_batch, epochs=9):
            session.backward(nn.functional.mse_loss(model(batch.x), batch.y) * factor)
            session.step(optimizer)
    return str(caught.value)


def samples(*odd: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    for place in odd:
        x[place, 3] = np.nan
    return x, y


def test_a_batch_that_holds_nan_is_named_with_its_samples() -> None:
    told = train(samples(33, 17), plan_batch=400)
    assert "step 1 (epoch 1) is nan" in told and "x of sample 17 and 1 more" in told and CAUSE not in told


def test_a_sample_is_numbered_as_the_user_gave_it() -> None:
    """Not by its place in what validation has left over."""
    split = arrays(*samples(360), validation=0.5, seed=1)
    assert 360 in split.train.ids and list(split.train.ids).index(360) != 360  # type: ignore[attr-defined]
    assert "x of sample 360." in train(split.train, plan_batch=200)


def test_infinite_targets_are_named_too() -> None:
    x, y = samples()
    y[5] = np.inf
    told = train((x, y), plan_batch=400)
    assert "y of sample 5." in told


def test_before_the_first_update_it_is_not_the_learning_rate() -> None:
    told = train(samples(), factor=float("nan"))
    assert "step 1 " in told and "finite" in told and "division by zero" in told and CAUSE not in told


def test_later_it_may_be() -> None:
    told = train(samples(), lr=1e20)
    assert "step 1 " not in told and CAUSE in told and "finite" in told
