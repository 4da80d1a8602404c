"""A loop of one's own that trains past the session is refused; one that only looks at its data is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cordee.core.errors import UsageError
from cordee.train.session import Session, stepper_of

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
Update = Callable[[nn.Module, torch.optim.Optimizer], None]


def prepared(kind: Any = torch.optim.SGD, **more: Any) -> tuple[Session, nn.Module, Any]:
    """A session alone, with a model and its optimizer."""
    torch.manual_seed(0)
    session = Session()
    model = session.prepare(nn.Linear(6, 3))
    return session, model, kind(model.parameters(), lr=0.1, **more)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch.x), batch.y)


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad  # type: ignore[operator]


@pytest.mark.parametrize(
    ("optimizer", "update"),
    [
        ({}, lambda model, optimizer: optimizer.step()),
        ({"kind": torch.optim.AdamW, "fused": True}, lambda model, optimizer: optimizer.step()),
        ({}, by_hand),
    ],
    ids=["plain", "fused", "by hand"],
)
@pytest.mark.parametrize("accumulated", [False, True])
def test_an_ordinary_loop_is_refused_at_its_first_step(
    optimizer: dict[str, Any], update: Update, accumulated: bool
) -> None:
    session, model, made = prepared(**optimizer)
    seen = 0
    with pytest.raises(UsageError, match=r"s\.backward\(loss\) instead of loss\.backward\(\)"):
        for batch in session.batches((X, Y), batch=10):
            seen += 1
            loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            if accumulated and seen < 2:
                continue
            update(model, made)
            made.zero_grad()
    assert seen == (2 if accumulated else 1)


def test_an_update_without_our_backward_is_refused() -> None:
    session, model, optimizer = prepared()
    with pytest.raises(UsageError, match=r"without backward\(\)"):
        for batch in session.batches((X, Y), batch=10):
            loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            session.step(optimizer)
    assert stepper_of(session).done == 0


def test_a_loop_may_look_at_its_data() -> None:
    session = Session()
    assert sum(len(batch) for batch in session.batches((X, Y), batch=10, epochs=2)) == 80
    assert stepper_of(session).done == stepper_of(session).number == 0


@pytest.mark.parametrize("gradients", [False, True])
def test_a_loop_may_evaluate_a_model_before_and_after_training(gradients: bool) -> None:
    session, model, optimizer = prepared()

    def evaluate() -> float:
        total = 0.0
        for batch in session.batches((X, Y), batch=10):
            loss = loss_of(model, batch)
            if gradients:  # which are looked at, not followed
                loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach()) * len(batch)
        optimizer.zero_grad()
        return total / 40

    before = evaluate()
    for batch in session.batches((X, Y), batch=10):
        session.backward(loss_of(model, batch))
        assert session.step(optimizer)
    assert stepper_of(session).done == 4
    assert evaluate() < before
    assert stepper_of(session).done == 4


def test_steps_that_were_passed_over_do_not_count() -> None:
    session, model, optimizer = prepared()
    numbers = []
    for batch in session.batches((X, Y), batch=10, epochs=2):
        if batch.step % 2:
            continue
        session.backward(loss_of(model, batch))
        assert session.step(optimizer)
        assert session.last is not None
        numbers.append((session.last.epoch, session.last.step, stepper_of(session).done))
    assert numbers == [(0, 0, 1), (0, 2, 2), (1, 0, 3), (1, 2, 4)]
    assert stepper_of(session).done == stepper_of(session).number == 4
