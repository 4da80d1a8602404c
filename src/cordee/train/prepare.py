"""Making a model ready to be trained by several workers."""

from __future__ import annotations

from torch import nn

from cordee.core.plan import Plan
from cordee.group.alike import alike
from cordee.group.rope import Rope
from cordee.sync.batchnorm import StepState, bind
from cordee.train.agreement import agree_on, of_model, state_of
from cordee.train.devices import lay_out


def prepared(model: nn.Module, rope: Rope, plan: Plan, state: StepState, device: str) -> nn.Module:
    """The model on its device, the same on every worker, with BatchNorm as the plan says; every worker calls this."""
    agree_on(rope, of_model(model, plan))
    model = lay_out(model.to(device), plan.layout)
    bind(model, plan.batchnorm, rope, state, compiled=plan.compile)
    if not alike(state_of(model), rope):  # made from one seed they mostly are, and slow links are spared
        rope.share_from_first(state_of(model))
    return model
