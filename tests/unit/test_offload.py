"""State of optimizers and activations of a GPU in host memory; on a CPU that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cordee.core.errors import PlanError
from cordee.core.plan import Plan
from cordee.core.refusals import refuse_on_cpu
from cordee.state.naming import capture, restore
from cordee.train import offload
from cordee.train.stepper import Stepper

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
    "adafactor": lambda params: torch.optim.Adafactor(params),
}


def test_a_cpu_has_nothing_to_move() -> None:
    with pytest.raises(PlanError, match=r"offload=all moves what a GPU holds .* leave offload out"):
        refuse_on_cpu("all", "cpu")
    with pytest.raises(PlanError, match="leave offload out"):
        Stepper(plan=Plan(offload="optimizer")).prepare(nn.Linear(2, 2))


def test_only_the_buckets_parameters_are_stepped() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.5}], lr=0.1)
    first.grad, second.grad = torch.ones(2), torch.ones(2)
    with offload._only(optimizer, [second]):
        optimizer.step()
    assert (first.tolist(), second.tolist()) == ([1.0, 1.0], [0.5, 0.5])
    assert [group["params"] for group in optimizer.param_groups] == [[first], [second]]


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 8)).cuda()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(1)
    for _ in range(steps):
        model(torch.randn(512, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_in_host_memory_gives_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "BUCKET_BYTES", 20_000)
    plain, hosted = make(), make()
    ours = OPTIMIZERS[name](hosted.parameters())
    offload.HostState(ours)
    train(plain, OPTIMIZERS[name](plain.parameters()), 5)
    train(hosted, ours, 3)
    large = [one for state in ours.state.values() for one in state.values() if torch.is_tensor(one)]
    assert all(one.is_cpu for one in large if one.nbytes >= offload.LEAST_STATE_BYTES)
    snapshot = capture(hosted, {"main": ours})
    resumed = make()
    again = OPTIMIZERS[name](resumed.parameters())
    offload.HostState(again)
    restore(snapshot, resumed, {"main": again}, on_host=True)
    torch.manual_seed(1)
    for _ in range(3):
        torch.randn(512, 64, device="cuda")
    for _ in range(2):
        resumed(torch.randn(512, 64, device="cuda")).square().mean().backward()
        again.step()
        again.zero_grad()
    for one, other in zip(plain.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_activations_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "LEAST_BYTES", 1)
    monkeypatch.setattr(offload, "UNDER_WAY_BYTES", 300_000)
    plain, storing = make(), make()
    offload.store_activations(storing)
    x = torch.randn(512, 64, device="cuda")
    kept = []
    for model in (plain, storing):
        before = torch.cuda.memory_allocated()
        loss = model(x).square().mean()
        torch.cuda.synchronize()
        kept.append(torch.cuda.memory_allocated() - before)
        loss.backward()
    assert kept[1] < kept[0] / 3
    for one, other in zip(plain.parameters(), storing.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)
