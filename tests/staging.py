"""Runs all stages of a model in one process, and compares them with the whole model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cordee.split.staged import Staged
from cordee.split.stages import Stages, plan_stages

Objective = Callable[[nn.Module, Any], Tensor]
EXACT = 1e-12


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def rows(*counts: int, shape: tuple[int, ...] = (6,)) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(count, *shape).double(), torch.randint(0, 3, (count,))) for count in counts]


def mlp(layers: int = 4) -> nn.Sequential:
    hidden = [layer for _ in range(layers - 2) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), *hidden, nn.Linear(8, 3)).double()


def names(plan: Stages) -> list[str]:
    return [unit.name for unit in plan.units]


def make_stages(
    model: nn.Module, objective: Objective, batch: Any, stages: Any, hands: Sequence[Sequence[int]] | None = None
) -> list[Staged]:
    """One per process; `hands` says which stages each has."""
    plan = plan_stages(model, lambda: objective(model, batch), stages, costs="parameters")
    hands = hands or [[stage] for stage in range(len(plan))]
    return [Staged(copy.deepcopy(model), plan, mine) for mine in hands]


def holder(staged: Sequence[Staged], stage: int) -> Staged:
    return next(one for one in staged if stage in one.mine)


def run_stages(
    staged: Sequence[Staged], objective: Objective, batch: Any, *, split: bool = False, draw: int | None = None
) -> Tensor:
    """The loss of one micro-batch; its gradients are added."""
    plan = staged[0].stages
    passes, outputs = [], ()
    for stage in range(len(plan)):
        one = holder(staged, stage)
        run = lambda one=one: objective(one.model, batch)  # noqa: E731
        shapes = one.specs(stage, run)
        assert [(tuple(t.shape), t.dtype) for t in outputs] == [(tuple(s.size), s.dtype) for s, _ in shapes]
        passes.append(one.forward(stage, run, outputs, draw=draw))
        outputs = passes[-1].outputs
    gradients: tuple[Tensor, ...] = ()
    for stage in reversed(range(len(plan))):
        one = holder(staged, stage)
        gradients = (one.backward_inputs if split else one.backward)(passes[stage], gradients)
        assert len(gradients) == sum(
            sends for _, sends in one.specs(stage, lambda one=one: objective(one.model, batch))
        )
    if split:
        for stage in range(len(plan)):
            holder(staged, stage).backward_weights(passes[stage])
    return passes[-1].result.detach()


def gradients_of(staged: Sequence[Staged]) -> dict[str, Tensor]:
    """All stages together, under the first name of a parameter; each parameter must lie where the plan says."""
    plan = staged[0].stages
    first = {name: tied.names[0] for tied in plan.tied for name in tied.names}
    found: dict[str, Tensor] = {}
    for one in staged:
        owned = one.owned()
        assert set(owned) == set(dict(one.model.named_parameters()))
        for name, parameter in owned.items():
            if parameter.grad is not None:
                known = first.get(name, name)
                found[known] = found[known] + parameter.grad if known in found else parameter.grad
    return found


def compare(
    model: nn.Module,
    objective: Objective,
    batches: Sequence[Any],
    stages: Any,
    *,
    split: bool = False,
    hands: Sequence[Sequence[int]] | None = None,
) -> Stages:
    """Losses, gradients and buffers of all stages, one after the other, are those of the whole model."""
    model.train()
    staged = make_stages(model, objective, batches[0], stages, hands)
    plan = staged[0].stages
    whole = copy.deepcopy(model)
    names = {name for one in staged for name in one.owned()}
    assert names | {name for tied in plan.tied for name in tied.names} >= set(dict(whole.named_parameters()))
    for batch in batches:
        wanted = objective(whole, batch)
        wanted.backward()
        close(run_stages(staged, objective, batch, split=split), wanted.detach(), "loss")
    compare_state(whole, staged)
    whole.eval()
    for one in staged:
        one.model.eval()
    with torch.no_grad():
        for batch in batches:
            outputs: tuple[Tensor, ...] = ()
            for stage in range(len(plan)):
                one = holder(staged, stage)
                passed = one.forward(stage, lambda one=one: objective(one.model, batch), outputs)  # noqa: B023
                outputs = passed.outputs
            close(passed.result, objective(whole, batch), "evaluation")
    return plan


def compare_state(whole: nn.Module, staged: Sequence[Staged]) -> None:
    gradients = gradients_of(staged)
    wanted = {name: one.grad for name, one in whole.named_parameters() if one.grad is not None}
    assert set(gradients) == set(wanted)
    for name, gradient in wanted.items():
        close(gradients[name], gradient, name)
    buffers = {name: one for each in staged for name, one in each.model.named_buffers()}
    for name, buffer in whole.named_buffers():
        close(buffers[name].double(), buffer.double(), name)


def close(got: Tensor, wanted: Tensor, what: str) -> None:
    assert got.shape == wanted.shape, what
    assert (got - wanted).abs().max() <= EXACT * max(1.0, float(wanted.abs().max())), what
