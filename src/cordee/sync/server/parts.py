"""What a push of a part of a global batch does to an optimizer: the parts of a step do what the step would have done.

A push of the share w moves parameters by w times the learning rate, and so decays them. What an optimizer averages over
steps it has to forget over as many samples as before, so a decay per step becomes its w-th power:

- SGD with momentum b: buffer = b^w buffer + (1 - b^w) / (1 - b) gradient. A gradient that stays the same has the same
  buffer as without parts, and all that follows from one push adds up to w times what follows from a step.
- Adam with betas b1 and b2: both averages likewise, and steps are counted as w. The square of a part's gradient g is
  larger than that of a global batch's, by the noise of fewer samples; with it Adam's steps would be too short, by up to
  the root of w. So the second average gets w g^2 + (1 - w) m^2, with m the first average, corrected for its start: on
  the average that is the square of a global batch's gradient.

Optimizers of other kinds get the learning rate alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Adamax, Optimizer, RAdam


@contextlib.contextmanager
def applied_as_part(optimizer: Optimizer, share: float) -> Iterator[None]:
    """Within this, a step of the optimizer counts as such a part of one; its settings are changed by it."""
    if not 0.0 < share < 1.0:
        yield
        return
    counted = []
    for group in optimizer.param_groups:
        present = [one for one in group["params"] if one.grad is not None]
        if "lr" in group:
            group["lr"] = group["lr"] * share
        if isinstance(optimizer, SGD) and group["momentum"]:
            _scale_momentum(group, optimizer.state, present, share)
        elif isinstance(optimizer, (Adam, RAdam, Adamax)):
            betas = group["betas"]
            for parameter in present:
                _correct_square(parameter, group, optimizer.state[parameter], share)
            group["betas"] = tuple(beta**share for beta in betas)
            counted += present
    yield
    for parameter in counted:
        if isinstance(steps := optimizer.state[parameter].get("step"), Tensor):
            steps.mul_(share)


def _scale_momentum(group: dict[str, Any], state: dict[Any, Any], present: list[nn.Parameter], share: float) -> None:
    momentum = group["momentum"]
    kept = momentum**share
    weight = (1 - kept) / (1 - momentum) if momentum < 1 else share
    for parameter in present:
        if state[parameter].get("momentum_buffer") is None:  # or it would begin with all of the first gradient
            state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    group["momentum"], group["dampening"] = kept, 1 - (1 - group["dampening"]) * weight
    if group["nesterov"]:  # it adds the gradient once more, which is then too much by this
        group["lr"] /= 1 - momentum + kept


@torch.no_grad()
def _correct_square(parameter: nn.Parameter, group: dict[str, Any], state: dict[str, Any], share: float) -> None:
    """Before a step: count in parts, and put into the second average what makes up for what the step will add."""
    if not isinstance(steps := state.get("step"), Tensor):  # the first gradient, which is its own first average
        return
    first, second = (beta**share for beta in group["betas"])
    if (squares := state.get("exp_avg_sq")) is not None:
        assert parameter.grad is not None
        gradient = -parameter.grad if group.get("maximize") else parameter.grad
        if group["weight_decay"] and not group.get("decoupled_weight_decay"):
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        mean = torch.lerp(gradient, state["exp_avg"], first)
        mean /= 1 - group["betas"][0] ** (float(steps) + share)
        more = _real(mean).square() - _real(gradient).square()
        _real(squares).add_(more, alpha=(1 - share) * (1 - second) / second)
    steps.div_(share)


def _real(tensor: Tensor) -> Tensor:
    """Adam squares the parts of complex numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
