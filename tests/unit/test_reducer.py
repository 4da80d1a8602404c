"""Buckets of gradients, and BatchNorm's arithmetic, for one process alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cordee.core.errors import ModelError
from cordee.group.rope import Rope
from cordee.sync.allreduce import Reducer
from cordee.sync.batchnorm import StepState, bind


class Echo(Rope):
    """A rope of two whose other member always says the same as we do: sums are doubles."""

    members = (0, 1)

    def __init__(self) -> None:
        super().__init__()
        self.members = (0, 1)
        self.sent: list[int] = []

    def start_sum(self, tensor: torch.Tensor) -> object:
        self.sent.append(tensor.numel())
        tensor.mul_(2)
        return self

    def wait(self, work: object) -> bool:
        return True

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor, tensor.clone()]


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20), nn.Linear(20, 5)).double()


@pytest.mark.parametrize(("bucket_mb", "buckets"), [(25.0, 1), (0.005, 3)])
def test_gradients_and_riders_are_summed_in_buckets(bucket_mb: float, buckets: int) -> None:
    model, rope = two_layers(), Echo()
    reducer = Reducer(model.parameters(), rope, bucket_mb=bucket_mb, overlap=True)
    for step in range(3):
        reducer.ride_along(lambda step=step: [1.5, float(step)])
        reducer.arm()
        loss = model(torch.ones(3, 40).double()).square().mean()
        wanted = [2 * gradient for gradient in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)]
        loss.backward()
        early = len(rope.sent)
        assert reducer.finish(void=False) == [3.0, 2.0 * step]
        assert early == (0 if step == 0 else buckets)  # the first step builds the buckets, later ones fill them early
        assert len(rope.sent) == buckets
        rope.sent.clear()
        assert all(torch.equal(p.grad, want) for p, want in zip(model.parameters(), wanted, strict=True))  # type: ignore[arg-type]
        reducer.clear()
        assert all(parameter.grad is None for parameter in model.parameters())


def test_a_gradient_that_nobody_has_stays_none() -> None:
    model = two_layers()
    reducer = Reducer(model.parameters(), Echo(), bucket_mb=25.0, overlap=True)
    reducer.ride_along(lambda: [])
    model[2](torch.ones(2, 20).double()).sum().backward()
    reducer.finish(void=False)
    assert [parameter.grad is None for parameter in model.parameters()] == [True, True, True, True, False, False]


def test_frozen_parameters_are_left_out() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    reducer = Reducer(model.parameters(), Echo(), bucket_mb=25.0, overlap=True)
    assert len(reducer.parameters) == 4


def test_parameters_of_two_types_travel_in_buckets_of_their_own() -> None:
    rope = Echo()
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 2).double()])
    reducer = Reducer(model.parameters(), rope, bucket_mb=25.0, overlap=False)
    reducer.ride_along(lambda: [7.0])
    (model[0](torch.ones(1, 4)).sum() + model[1](torch.ones(1, 4).double()).sum()).backward()
    assert reducer.finish(void=False) == [14.0]
    assert len(rope.sent) == 2
    assert model[0].bias.grad is not None and model[0].bias.grad.dtype == torch.float32
    assert model[1].bias.grad is not None and model[1].bias.grad.tolist() == [2.0, 2.0]


def test_channels_last_gradients_keep_their_layout() -> None:
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    reducer = Reducer(conv.parameters(), Echo(), bucket_mb=25.0, overlap=False)
    reducer.ride_along(lambda: [])
    conv(torch.randn(2, 3, 8, 8)).sum().backward()
    wanted = 2 * conv.weight.grad  # type: ignore[operator]
    reducer.finish(void=False)
    assert conv.weight.grad is not None
    assert conv.weight.grad.stride() == conv.weight.stride() and torch.equal(conv.weight.grad, wanted)


@pytest.mark.parametrize("affine", [True, False])
def test_batchnorm_over_two_equal_halves_is_that_of_the_whole(affine: bool) -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3, affine=affine).double()
    exact = nn.BatchNorm2d(3, affine=affine).double()
    exact.load_state_dict(plain.state_dict())
    assert bind(exact, "exact", Echo(), StepState()) == 1
    half = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    whole = torch.cat([half, half]).requires_grad_()
    mine = half.clone().requires_grad_()
    out, mine_out = plain(whole), exact(mine)
    weight = torch.randn_like(half)
    (out * torch.cat([weight, weight])).sum().backward()
    (mine_out * weight).sum().backward()
    torch.testing.assert_close(mine_out, out[:4], rtol=0, atol=1e-12)
    torch.testing.assert_close(mine.grad, whole.grad[:4], rtol=0, atol=1e-12)  # type: ignore[index]
    torch.testing.assert_close(exact.running_var, plain.running_var, rtol=0, atol=1e-12)
    torch.testing.assert_close(exact.running_mean, plain.running_mean, rtol=0, atol=1e-12)
    if affine:  # each half holds half of the gradient; the reducer adds them up
        torch.testing.assert_close(2 * exact.weight.grad, plain.weight.grad, rtol=0, atol=1e-12)  # type: ignore[operator]
    exact.eval()
    plain.eval()
    torch.testing.assert_close(exact(half), plain(half), rtol=0, atol=1e-12)


def test_a_batchnorm_with_a_forward_of_its_own_is_refused_and_not_replaced() -> None:
    class WithActivation(torch.nn.BatchNorm1d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).relu()

    with pytest.raises(ModelError, match="WithActivation"):
        bind(torch.nn.Sequential(WithActivation(4)), "exact", Echo(), StepState())
    assert bind(torch.nn.Sequential(WithActivation(4)), "replica", Echo(), StepState()) == 1
