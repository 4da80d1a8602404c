"""Buckets of gradients, and BatchNorm's arithmetic, for one process alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from cordee.core.errors import ModelError, UsageError
from cordee.core.plan import Plan
from cordee.core.record import Record
from cordee.group.team import Team
from cordee.group.transport.seam import Transport
from cordee.sync.allreduce import AllReduce
from cordee.sync.batchnorm import StepState, bind
from cordee.sync.buckets import most_mb_on
from cordee.sync.gradients import drop
from cordee.sync.lossy import Exact
from cordee.sync.seam import Treatment
from cordee.train.placing import Placing
from cordee.train.reducers import Reducers

RECORD = Record(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2**40 + 3)


class Doubling(Transport):
    """A transport between two members that always have the same."""

    ends_by_itself = True

    def __init__(self) -> None:
        self.sent: list[int] = []

    def sum(self, tensor: torch.Tensor) -> Any:
        self.sent.append(tensor.numel())
        tensor.mul_(2)
        return self

    def gather(self, tensor: torch.Tensor, parts: list[torch.Tensor]) -> Any:
        for part in parts:
            part.copy_(tensor)
        return self

    def has_ended(self) -> bool:
        return True

    def wait(self, broken: object) -> None:
        pass


class Echo(Team):
    """A team of two whose other member always has the same as this one."""

    def __init__(self) -> None:
        super().__init__()
        self.membership.members, self.membership.size = (0, 1), 2
        doubling = Doubling()
        for comm in (self.sums, self.layers):
            comm.among((0, 1))
        self.sums.transports = self.layers.transports = (doubling,)  # type: ignore[assignment]
        self.sent = doubling.sent


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20), nn.Linear(20, 5)).double()


@pytest.mark.parametrize(("bucket_mb", "buckets"), [(25.0, 1), (0.005, 2), (0.0005, 3)])
def test_gradients_and_riders_are_summed_in_buckets(bucket_mb: float, buckets: int) -> None:
    model, team = two_layers(), Echo()
    reducer = AllReduce(model.parameters(), Exact(team), bucket_mb=bucket_mb, overlap=True)
    for step in range(3):
        reducer.begin(record := lambda step=step: RECORD._replace(loss=1.5, weight=float(step)))
        loss = model(torch.ones(3, 40).double()).square().mean()
        wanted = [2 * gradient for gradient in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)]
        loss.backward()
        early = len(team.sent)
        summed = reducer.commit(record, void=False, treatment=Treatment())
        assert summed is not None and summed.record[:2] == (3.0, 2.0 * step)
        assert summed.record.digest == 2 * RECORD.digest
        # The first step builds the buckets, later ones fill them early; one bucket is full at the end only.
        assert early == (0 if step == 0 or buckets == 1 else buckets)
        assert len(team.sent) == buckets
        team.sent.clear()
        assert all(torch.equal(p.grad, want) for p, want in zip(model.parameters(), wanted, strict=True))  # type: ignore[arg-type]
        drop(reducer.parameters)
        assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("mbit", "wanted_mb"), [(0.1, 0.5), (10, 0.5), (200, 0.834), (1000, 4.17), (5000, 20.9), (1e5, 25.0)]
)
def test_a_bucket_takes_some_35_ms_on_the_link(mbit: float, wanted_mb: float) -> None:
    assert most_mb_on(mbit * 125_000) == pytest.approx(wanted_mb, rel=0.01)


@pytest.mark.parametrize(
    ("mbit", "bucket_mb", "buckets"),
    [(0, 0.0, 4), (0, 4.0, 4), (0, 25.0, 2), (100, 0.0, 6), (1000, 0.0, 4), (10_000, 0.0, 4), (100, 25.0, 2)],
)
def test_without_a_size_in_the_plan_sums_on_cpus_begin_early(mbit: float, bucket_mb: float, buckets: int) -> None:
    """`mbit`: of the slowest link between hosts, 0 where all are on one."""
    team = Echo()
    team.lines.pace(mbit * 125_000)
    model = nn.Sequential(*(nn.Linear(768, 768, bias=False) for _ in range(6)))  # 2.25 MiB each
    reducer = AllReduce(model.parameters(), Exact(team), bucket_mb=bucket_mb, overlap=True)
    model(torch.ones(1, 768)).sum().backward()
    assert reducer.commit(lambda: RECORD, void=False, treatment=Treatment()) is not None
    assert len([size for size in team.sent if size > 1]) == buckets  # one number says that the result is here


def test_a_gradient_that_nobody_has_stays_none() -> None:
    model = two_layers()
    reducer = AllReduce(model.parameters(), Exact(Echo()), bucket_mb=25.0, overlap=True)
    model[2](torch.ones(2, 20).double()).sum().backward()
    reducer.commit(lambda: RECORD, void=False, treatment=Treatment())
    assert [parameter.grad is None for parameter in model.parameters()] == [True, True, True, True, False, False]


def test_frozen_parameters_are_left_out() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    reducer = AllReduce(model.parameters(), Exact(Echo()), bucket_mb=25.0, overlap=True)
    assert len(reducer.parameters) == 4


def test_parameters_of_two_types_travel_in_buckets_of_their_own() -> None:
    team = Echo()
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 2).double()])
    reducer = AllReduce(model.parameters(), Exact(team), bucket_mb=25.0, overlap=False)
    (model[0](torch.ones(1, 4)).sum() + model[1](torch.ones(1, 4).double()).sum()).backward()
    summed = reducer.commit(lambda: RECORD._replace(loss=7.0), void=False, treatment=Treatment())
    assert summed is not None and summed.record.loss == 14.0
    assert len(team.sent) == 2
    assert model[0].bias.grad is not None and model[0].bias.grad.dtype == torch.float32
    assert model[1].bias.grad is not None and model[1].bias.grad.tolist() == [2.0, 2.0]


def test_channels_last_gradients_keep_their_layout() -> None:
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    reducer = AllReduce(conv.parameters(), Exact(Echo()), bucket_mb=25.0, overlap=False)
    conv(torch.randn(2, 3, 8, 8)).sum().backward()
    wanted = 2 * conv.weight.grad  # type: ignore[operator]
    reducer.commit(lambda: RECORD, void=False, treatment=Treatment())
    assert conv.weight.grad is not None
    assert conv.weight.grad.stride() == conv.weight.stride() and torch.equal(conv.weight.grad, wanted)


class OldStyle(torch.optim.Optimizer):
    """As many write it: the gradient is used as memory through `.data`, which no version counter sees."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad.data.add_(parameter.data, alpha=0.5)
            parameter.data.add_(parameter.grad.data, alpha=-self.param_groups[0]["lr"])


class Later(torch.optim.SGD):
    """Halves gradients from its third step on."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.grad.mul_(0.5 if self.steps > 2 else 1.0)
        return super().step(closure)


class Keeping(torch.optim.Optimizer):
    """Its momentum begins as the gradient itself."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if state:
                state["momentum"].mul_(0.9).add_(parameter.grad)
            else:
                state["momentum"] = parameter.grad
            parameter.add_(state["momentum"], alpha=-0.1)


def hooked(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    made = torch.optim.SGD(params, lr=0.1)

    def halve(*_: Any) -> None:
        for parameter in made.param_groups[0]["params"]:
            parameter.grad.data.mul_(0.5)

    made.register_step_pre_hook(halve)
    return made


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "old style": OldStyle,
    "later": lambda params: Later(params, lr=0.1),
    "keeping": Keeping,
    "hooked": hooked,
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_whatever_an_optimizer_does_to_gradients_a_peer_gets_what_was_agreed_on(kind: str) -> None:
    """And what it keeps of them is its own: buckets are filled anew two steps later."""
    alone, model, team = two_layers(), two_layers(), Echo()
    reducer = AllReduce(model.parameters(), Exact(team), bucket_mb=0.005, overlap=True)
    optimizers = [OPTIMIZERS[kind](one.parameters()) for one in (alone, model)]
    for step in range(6):
        x = torch.full((3, 40), 0.1 + step).double()
        alone.zero_grad()
        (2 * alone(x).square().mean()).backward()  # what the echo makes of it
        reducer.begin(lambda: RECORD)
        model(x).square().mean().backward()
        reducer.commit(lambda: RECORD, void=False, treatment=Treatment())
        agreed = [tensor.clone() for tensor in team._result]
        reducer.update(optimizers[1])
        optimizers[0].step()
        assert all(torch.equal(held, was) for held, was in zip(team._result, agreed, strict=True)), step
        drop(reducer.parameters)
        for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "copied"), [("adamw", [True, False, False]), ("old style", [True, True, True])])
def test_only_optimizers_of_pytorch_get_the_buckets_themselves(kind: str, copied: list[bool]) -> None:
    model = two_layers()
    reducer = AllReduce(model.parameters(), Exact(Echo()), bucket_mb=25.0, overlap=True)
    optimizer = OPTIMIZERS[kind](model.parameters())
    found = []
    for _ in copied:
        model(torch.ones(3, 40).double()).square().mean().backward()
        reducer.commit(lambda: RECORD, void=False, treatment=Treatment())
        given = [parameter.grad for parameter in model.parameters()]
        reducer.update(optimizer)
        found.append(any(p.grad is not one for p, one in zip(model.parameters(), given, strict=True)))
        drop(reducer.parameters)
    assert found == copied


@pytest.mark.parametrize(
    ("backward", "passed", "regrouped", "sends"),
    [
        (True, True, False, True),  # the hooks have sent all
        (False, True, False, True),  # an empty share has sent nothing: the others have
        (False, False, False, False),  # the backward pass failed
        (False, True, True, False),  # the others of then are gone
    ],
)
def test_a_step_that_is_dropped_sends_as_much_on_every_replica(
    backward: bool, passed: bool, regrouped: bool, sends: bool
) -> None:
    model, team = two_layers(), Echo()
    reducer = AllReduce(model.parameters(), Exact(team), bucket_mb=0.005, overlap=True)
    reducer.commit(lambda: RECORD, void=False, treatment=Treatment())  # makes the buckets
    wanted = list(team.sent) if sends else []
    assert len(team.sent) > 1
    team.sent.clear()
    reducer.begin(lambda: RECORD)
    if backward:
        model(torch.ones(3, 40).double()).square().mean().backward()
    team.membership.generation += regrouped
    reducer.forget(passed=passed)
    assert team.sent == wanted
    assert all(parameter.grad is None for parameter in model.parameters())
    reducer.forget(passed=passed)
    assert team.sent == wanted


def test_sums_of_a_former_generation_are_not_gone_on_with() -> None:
    model, team = two_layers(), Echo()
    reducer = AllReduce(model.parameters(), Exact(team), bucket_mb=0.005, overlap=True)
    reducer.commit(lambda: RECORD, void=False, treatment=Treatment())
    reducer.begin(lambda: RECORD)
    team.membership.generation += 1
    team.sent.clear()
    assert reducer.begin(None) is False and team.sent == []


def test_a_sparse_gradient_is_clipped_by_the_norm_of_its_rows() -> None:
    layer, twin = nn.Embedding(5, 3, sparse=True), nn.Embedding(5, 3)
    for one in (layer, twin):
        one(torch.tensor([1, 2, 1])).sum().backward()
        AllReduce(one.parameters(), Exact(Team()), bucket_mb=25.0, overlap=True).commit(
            lambda: RECORD, void=False, treatment=Treatment(scale=2.0, clip=1.0)
        )
    assert layer.weight.grad is not None and layer.weight.grad.is_sparse and layer.weight.grad._nnz() == 2
    assert torch.allclose(layer.weight.grad.to_dense(), twin.weight.grad)  # type: ignore[arg-type]


def hooks(parameter: nn.Parameter) -> int:
    return len(parameter._post_accumulate_grad_hooks or ())


def reducers_of(team: Any, models: list[nn.Module]) -> Reducers:
    return Reducers(team, Plan(), models, Placing(team, Plan(), StepState(), "cpu"))


def test_an_optimizer_made_anew_takes_the_reducer_over() -> None:
    model = two_layers()
    reducers = reducers_of(Echo(), [model])
    head = reducers.of(torch.optim.SGD(model[2].parameters(), lr=0.1))
    assert head == (reducers.only(), True) and hooks(model[2].weight) == 1
    whole, _ = reducers.of(torch.optim.SGD(model.parameters(), lr=0.1))  # the next stage trains all layers
    for _ in range(3):
        again, _ = reducers.of(torch.optim.SGD(model.parameters(), lr=0.1))
        assert reducers.only() is again is whole and whole.overlap
        assert [hooks(parameter) for parameter in model.parameters()] == [1] * 6
    assert len(reducers._of) == 1
    reducers.close()
    assert [hooks(parameter) for parameter in model.parameters()] == [0] * 6


def test_optimizers_of_different_parameters_stay_side_by_side() -> None:
    model = two_layers()
    reducers = reducers_of(Echo(), [model])
    parts = [torch.optim.SGD(model[place].parameters(), lr=0.1) for place in (0, 2)]
    found = [reducers.of(part)[0] for part in parts]
    assert reducers.only() is None and found[0] is not found[1]
    whole = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # used in turns, none is made anew every time
        turns = [reducers.of(one)[0] for one in (whole, *parts)]
    assert [reducers.of(one)[0] for one in (whole, *parts)] == turns


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    with pytest.raises(UsageError, match="LBFGS cannot be used here: its step\\(\\) needs closure"):
        reducers_of(Team(), []).of(torch.optim.LBFGS(two_layers().parameters()))


@pytest.mark.parametrize("affine", [True, False])
def test_batchnorm_over_two_equal_halves_is_that_of_the_whole(affine: bool) -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3, affine=affine).double()
    exact = nn.BatchNorm2d(3, affine=affine).double()
    exact.load_state_dict(plain.state_dict())
    bind(exact, "exact", Echo().layers, StepState())
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
        bind(torch.nn.Sequential(WithActivation(4)), "exact", Echo().layers, StepState())
    model = torch.nn.Sequential(WithActivation(4))
    bind(model, "replica", Echo().layers, StepState())
    assert not (model(torch.randn(8, 4)) < 0).any()
