"""Pushes of parts: what optimizers make of all parts of a step is what they make of the step, in samples."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cordee.sync.server.parts import applied_as_part

CASES: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.5, "dampening": 0.3, "weight_decay": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.001}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01, "maximize": True, "fused": True}),
    (torch.optim.RAdam, {"lr": 0.01}),
    (torch.optim.Adamax, {"lr": 0.01}),
]


def moved(kind: Any, settings: dict[str, Any], gradients: list[Tensor], parts: list[float]) -> tuple[Tensor, Any]:
    """Where a parameter is after steps by these gradients, each in so many parts; and its optimizer."""
    parameter = nn.Parameter(torch.linspace(1, 2, gradients[0].numel(), dtype=torch.float64))
    optimizer = kind([parameter], **settings)
    given = copy.deepcopy([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])
    for gradient in gradients:
        for share in parts:
            optimizer.param_groups[0].update(given[0])
            parameter.grad = gradient.clone()
            with applied_as_part(optimizer, share):
                optimizer.step()
    return parameter.detach(), optimizer


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_a_gradient_that_stays_the_same_goes_as_far(kind: Any, settings: dict[str, Any]) -> None:
    """Without noise and without staleness the parts of many steps move as far as the steps, up to one step's length."""
    gradient = torch.tensor([0.1, -0.03, 0.2, 0.5], dtype=torch.float64)
    whole, first = moved(kind, settings, [gradient] * 200, [1.0])
    parts, second = moved(kind, settings, [gradient] * 200, [0.5, 0.3, 0.2])
    start = torch.linspace(1, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(parts - start, whole - start, rtol=0.03, atol=0)
    for state, other in zip(first.state.values(), second.state.values(), strict=True):
        for name, value in state.items():
            torch.testing.assert_close(other[name], value, rtol=0.02, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_second_average_is_that_of_whole_batches(kind: Any) -> None:
    """Parts have noisier gradients: four times the variance in quarters. Adam's steps would be half as long by it."""
    torch.manual_seed(0)
    settings = {"lr": 1e-3, "betas": (0.9, 0.99)}
    noise = torch.randn(1000, 4, 500, dtype=torch.float64)
    _, whole = moved(kind, settings, list(0.1 + 0.5 * noise.mean(1)), [1.0])
    parameter = nn.Parameter(torch.zeros(500, dtype=torch.float64))
    optimizer = kind([parameter], **settings)
    for step in noise:
        for part in step:
            optimizer.param_groups[0].update(settings)
            parameter.grad = 0.1 + 0.5 * part
            with applied_as_part(optimizer, 0.25):
                optimizer.step()
    averages = [float(next(iter(one.state.values()))["exp_avg_sq"].mean()) for one in (whole, optimizer)]
    assert averages[1] == pytest.approx(averages[0], rel=0.05)
    assert float(optimizer.state[parameter]["step"]) == pytest.approx(1000, rel=1e-4)


def test_a_whole_step_and_an_empty_part_change_nothing() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    for share in (0.0, 1.0):
        before = dict(optimizer.param_groups[0])
        with applied_as_part(optimizer, share):
            assert optimizer.param_groups[0] == before
