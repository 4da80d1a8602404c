"""How a model is cut into stages: balance, what the user may say, what is refused; planning changes nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cordee.core.errors import ModelError, PlanError
from cordee.split import costs as costs_of_units
from cordee.split.balance import balance, speeds_of
from cordee.split.costs import pass_ms
from cordee.split.stages import Stages, plan_stages

F = nn.functional
pytestmark = pytest.mark.usefixtures("calm")


@pytest.mark.parametrize(
    ("costs", "stages", "speeds", "counts"),
    [
        ([1, 1, 1, 1], 2, None, (2, 2)),
        ([1] * 10, 4, None, (2, 2, 3, 3)),
        ([5, 1, 1, 1, 1, 1], 2, None, (1, 5)),
        ([1, 1, 1, 9], 3, None, (1, 2, 1)),
        ([1] * 9, 2, [2, 1], (6, 3)),
        ([0, 0, 0], 3, None, (1, 1, 1)),
        ([3], 1, None, (1,)),
    ],
)
def test_balance(costs: list[float], stages: int, speeds: list[float] | None, counts: tuple[int, ...]) -> None:
    assert balance(costs, stages, speeds) == counts


def _slowest(counts: Sequence[int], costs: Sequence[float], speeds: Sequence[float]) -> float:
    ends = list(itertools.accumulate(counts))
    return max(sum(costs[end - count : end]) / speed for count, end, speed in zip(counts, ends, speeds, strict=True))


def _is_best(costs: Sequence[float], speeds: Sequence[float]) -> bool:
    """Whether no cut into stages of these speeds has a faster slowest stage than the balanced one."""
    units, stages = len(costs), len(speeds)
    every = [
        [end - start for start, end in zip((0, *cuts), (*cuts, units), strict=True)]
        for cuts in itertools.combinations(range(1, units), stages - 1)
    ]
    best = min(_slowest(counts, costs, speeds) for counts in every)
    return _slowest(balance(costs, stages, speeds), costs, speeds) == pytest.approx(best)


def test_no_other_cut_has_a_faster_slowest_stage() -> None:
    draw = random.Random(0)
    for _ in range(50):
        units = draw.randint(1, 8)
        costs = [draw.choice([0, 1, draw.random(), 10 * draw.random()]) for _ in range(units)]
        assert _is_best(costs, [draw.choice([1, 0.5, 3]) for _ in range(draw.randint(1, units))])
    for units, stages in ((3, 2), (4, 3), (5, 2)):
        for costs in itertools.product((1, 2, 5), repeat=units):
            assert all(_is_best(costs, speeds) for speeds in itertools.product((1, 0.8, 0.5), repeat=stages))


def test_speeds_of_about_equal_workers_are_equal() -> None:
    assert speeds_of([7.0]) == [1.0] and speeds_of([4.9, 4.1, 4.0]) == [1.0, 1.0, 1.0]
    assert speeds_of([4.0, 8.0, 16.1]) == [1.0, pytest.approx(1.25**-3), pytest.approx(1.25**-6)]
    assert speeds_of([1.0, 1.3]) == speeds_of([100.0, 130.0]) == [1.0, 0.8]
    for costs, stages in (([1, 2, 3, 4, 5], 2), ([5, 1, 1, 1, 1, 1], 3), ([0.1] * 12, 4)):
        noisy = [1 + 0.05 * stage for stage in range(stages)]
        assert balance(costs, stages, speeds_of(noisy)) == balance(costs, stages)


def test_a_quota_for_the_processor_makes_a_worker_slower() -> None:
    model, x = mlp(), torch.randn(4, 6)
    whole, hardly = (pass_ms(model, lambda: model(x).sum(), *cores) for cores in ((), (1e-4,)))
    assert hardly > 100 * whole > 0


def test_time_in_which_others_have_the_core_is_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks that only the layers move: the first computes for 0.1 s and waits for 5, the second computes for 0.3."""
    now, waited = [0.0], [0.0]

    class Timed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            wait, work = (5.0, 0.1) if self.out_features == 8 else (0.0, 0.3)
            now[0], waited[0] = now[0] + wait + work, waited[0] + wait
            return super().forward(x)

    monkeypatch.setattr(costs_of_units, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(costs_of_units, "_waited_for_core", lambda: waited[0])
    made = plan(nn.Sequential(Timed(6, 8), Timed(8, 3)), costs="time")
    assert [unit.cost for unit in made.units] == pytest.approx([100.0, 300.0])


def test_balance_refuses() -> None:
    for costs, stages, speeds in (
        ([1], 2, None),
        ([1, 1], 0, None),
        ([1, 1], 2, [1]),
        ([1, 1], 2, [1, 0]),
        ([-1, 1], 2, None),
    ):
        with pytest.raises(PlanError, match="expected"):
            balance(costs, stages, speeds)


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
    )


def plan(model: nn.Module, stages: Any = 2, **more: Any) -> Stages:
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    return plan_stages(model, lambda: F.cross_entropy(model(x), y), stages, **{"costs": "parameters", **more})


def test_planning_changes_nothing() -> None:
    model = mlp()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    def run() -> Tensor:
        random.random(), np.random.rand()
        return F.cross_entropy(model(x), y)

    made = plan_stages(model, run, 3)
    assert all(unit.cost > 0 for unit in made.units)
    assert model.training and all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    grads = {name: one.grad for name, one in model.named_parameters()}
    assert torch.equal(grads.pop("0.weight"), torch.ones_like(model[0].weight)) and set(grads.values()) == {None}
    assert torch.equal(drawn[0], torch.get_rng_state())
    assert drawn[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert not any("forward" in vars(module) for module in model.modules())


def test_what_the_user_says() -> None:
    assert plan(mlp(), [1, 2, 1]).counts == (1, 2, 1)
    assert plan(mlp(), ["0", "3"]).counts == (2, 2)
    assert plan(mlp(), 2, costs=[1, 1, 1, 9]).counts == (3, 1)
    assert plan(mlp(), 2, costs=[1, 1, 1, 1], speeds=[3, 1]).counts == (3, 1)
    assert plan(mlp(), [1, 2, 1]) == plan(mlp(), [1, 2, 1])


def test_the_table() -> None:
    assert str(plan(mlp(), [1, 3])).splitlines() == [
        "unit  stage  parameters  cost   sent on",
        "0         0          56    56  1 tensor",
        "2         1          72    72          ",
        "3         1          16    16          ",
        "5         1          27    27          ",
    ]


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (5, "5 stages: expected 1 to 4. The model has 4 units: 0, 2, 3, 5"),
        (0, "0 stages: expected 1 to 4"),
        ([1, 1], r"expected positive numbers that add up to 4. The model has 4 units: 0, 2, 3, 5"),
        (["0", "7"], "names '7', but the model has no such unit"),
        (["0", "3", "2"], "names '2' for a stage, but the stage before it begins there or later"),
    ],
)
def test_stages_that_do_not_fit(stages: Any, words: str) -> None:
    with pytest.raises((ModelError, PlanError), match=words):
        plan(mlp(), stages)


def test_one_layer_alone() -> None:
    with pytest.raises(ModelError, match=r"The model has 1 unit: model\. Choose a smaller pipeline= in the plan"):
        plan(nn.Linear(6, 3))


class Custom(nn.Module):
    """Three layers, with code of the test's own around the second."""

    def __init__(self, code: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.code = code
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.code(self, self.a(x)))


def reads(model: Any, x: Tensor) -> Tensor:
    return model.b(x) if x.mean() > 100 else model.b(-x)


class Keeps(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = super().forward(x)
        return self.seen * 2


def test_where_a_model_cannot_be_cut() -> None:
    with pytest.raises(ModelError, match=r"2 units: a, b. It cannot be cut behind 'b': `__bool__` reads numbers"):
        plan(Custom(reads), 3)
    model = Custom(lambda self, x: self.b(x) + self.b.seen)
    model.b = Keeps(6, 6)
    with pytest.raises(
        ModelError, match="'b' computes or changes a tensor that is used behind the cut, but does not return it"
    ):
        plan(model, 3)
    assert plan(model, 2).counts == (1, 1)


def counts(model: Any, x: Tensor) -> Tensor:
    model.count += 1
    return model.b(x)


def twice(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.b(x)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (counts, "layer 'model' changes a buffer of its own"),
        (twice, r"layer 'b' runs under torch.no_grad, but its parameter 'weight' requires gradients"),
        (
            lambda model, x: checkpoint(model.b, x, use_reentrant=True),
            "'b' runs under torch.no_grad.*use_reentrant=False",
        ),
    ],
)
def test_models_that_are_refused(code: Callable[[Any, Tensor], Tensor], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        plan(Custom(code))


def test_a_layer_with_a_state_on_two_stages_is_refused() -> None:
    norm = nn.BatchNorm1d(6)
    model = nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 6), norm, nn.Linear(6, 3))
    with pytest.raises(ModelError, match=r"3 units: 0, 1, 4. It cannot be cut behind '1': '1' computes or changes"):
        plan(model, 4)

    class Last(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x.detach()
            return super().forward(x)

    shared = Last(6, 6)
    shared.register_buffer("last", torch.zeros(()))
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(6, 3))
    with pytest.raises(ModelError, match=r"buffer '0.last' changes in the forward pass.* stages \(0, 1\)"):
        plan(model, [1, 2])
    assert plan(model, [2, 1]).counts == (2, 1)


def test_a_model_that_is_called_twice_is_refused() -> None:
    model = mlp()
    x = torch.randn(4, 6)
    with pytest.raises(ModelError, match="called more than once for one loss"):
        plan_stages(model, lambda: (model(x) - model(-x)).square().mean(), 2)
