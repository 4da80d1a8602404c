"""Norms that come late, as they do from a GPU: nothing waits for them, and none is forgotten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cordee.core.errors import DivergedError
from cordee.core.events import Event, StepEvent
from cordee.group.team import Team
from cordee.train import norms
from cordee.train import reporter as reporting
from cordee.train.ledger import Committed
from cordee.train.norms import Norms, learning_rate
from cordee.train.reporter import Reporter


class Coming:
    """Stands for what is fetched from a GPU."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def add(self, value: Any, factor: float) -> None:
        self._values.append(value.value * factor)

    def total(self) -> float:
        return sum(self._values)

    def clear(self) -> None:
        self._values.clear()


class OnGpu:
    """A norm that is not here yet."""

    is_cuda = True

    def __init__(self, value: float) -> None:
        self.value = value


class Channel:
    """Keeps what is told."""

    worker = 0
    clock_offset_s = paused_s = 0.0
    recorded = 0

    def __init__(self) -> None:
        self.told: list[Event] = []

    def post(self, event: Event) -> None:
        self.told.append(event)

    def heed(self) -> None:
        pass


def test_a_norm_that_comes_late_is_looked_at_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "Readings", Coming)
    model = nn.Linear(2, 1)
    seen = Norms([model])
    assert seen.late() is None
    for value in (1.5, 2.5):
        assert seen.see(OnGpu(value), list(model.parameters()), (0, 0)) is None  # type: ignore[arg-type]
        assert seen.late() == value and seen.late() is None
    assert seen.see(OnGpu(float("nan")), list(model.parameters()), (6, 1)) is None  # type: ignore[arg-type]
    model.bias.data.fill_(float("nan"))  # what the update made of it
    with pytest.raises(DivergedError, match=r"step 7 \(epoch 2\) is not finite, though the loss is: bias; the param"):
        seen.late()


def test_a_finite_gradient_with_large_squares_is_no_error() -> None:
    model = nn.Linear(2, 1)
    model.weight.grad = torch.full((1, 2), 1e30)
    assert Norms([model]).see(torch.tensor(float("inf")), list(model.parameters()), (0, 0)) == float("inf")


def test_a_record_waits_for_its_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "WRITE_EVERY_S", -1.0)
    team, channel = Team(), Channel()
    reporter = Reporter(team)
    team.channel = channel  # type: ignore[assignment]

    def committed(number: int) -> Committed:
        return Committed(number, 0, number, 1.0, 1, False, False, False, None, 0.1)

    def steps() -> list[Any]:
        return [(one.step, one.grad_norm) for one in channel.told if isinstance(one, StepEvent)]

    reporter.start()
    reporter.commit([(committed(0), 1)], waits=True)
    assert steps() == []
    reporter.came(3.0)
    reporter.commit([(committed(1), 1)], waits=True)
    assert steps() == [(1, 3.0)]
    reporter.commit([(committed(2), 1)])  # known at once, or not to be known
    assert steps() == [(1, 3.0), (2, None), (3, None)]


def test_the_learning_rate_is_a_number_or_nothing() -> None:
    model = nn.Linear(2, 1)
    assert learning_rate(torch.optim.SGD(model.parameters(), lr=0.25)) == 0.25
    assert learning_rate(torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5))) == 0.5
    assert learning_rate(torch.optim.Rprop(model.parameters())) == 0.01
