"""Steps of an optimizer on slices: on the memory that this worker holds, without DTensor's dispatch of each operation.

DTensor's kernels for many tensors refuse slices beside whole tensors, and one tensor at a time costs a tenth of a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.optim import optimizer as torch_optimizer

from cordee.group.sliced import is_sliced, like, local_of

ELEMENTWISE = (Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, SGD)
"""PyTorch's optimizers that treat each number of a parameter by itself; subclasses may do something else."""


def is_torchs_own(optimizer: Optimizer) -> bool:
    """Whether it is PyTorch's code alone that runs in a step, of which we know that version counters see its writes."""
    if not f"{type(optimizer).__module__}.".startswith("torch.optim."):
        return False
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    return not any(hooks)


def step_on_slices(optimizer: Optimizer) -> None:
    """Let an optimizer step whose parameters are slices, or some of them; its state is in slices as they are."""
    if type(optimizer) not in ELEMENTWISE or not is_torchs_own(optimizer):
        for group in optimizer.param_groups:
            group.update({name: False for name in ("foreach", "fused") if group.get(name) is not False})
        optimizer.step()
        return
    groups, state = optimizer.param_groups, optimizer.state
    given = [group["params"] for group in groups]
    plain = {id(one): _plain(one) for parameters in given for one in parameters}
    optimizer.state = defaultdict(dict, {plain[id(one)]: _locals(values) for one, values in state.items()})
    try:
        for group in groups:
            group["params"] = [plain[id(one)] for one in group["params"]]
        optimizer.step()
    finally:
        for group, parameters in zip(groups, given, strict=True):
            group["params"] = parameters
            for one in parameters:
                if (made := optimizer.state.get(plain[id(one)])) is not None:
                    state[one] = _in_slices(one, made, state.get(one, {}))
        optimizer.state = state


def _plain(parameter: nn.Parameter) -> nn.Parameter:
    """What this worker holds of a parameter and of its gradient, as a parameter on the same memory."""
    if not is_sliced(parameter):
        return parameter
    plain = nn.Parameter(local_of(parameter), requires_grad=parameter.requires_grad)
    plain.grad = None if parameter.grad is None else local_of(parameter.grad)
    return plain


def _locals(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: local_of(value) if isinstance(value, Tensor) else value for name, value in values.items()}


def _in_slices(parameter: nn.Parameter, made: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a parameter, in which what has its shape is a slice as it is."""
    if not is_sliced(parameter):
        return made
    shape = local_of(parameter).shape
    for name, value in made.items():
        if isinstance(value, Tensor) and value.shape == shape and value.dim():
            there = before.get(name)
            same = isinstance(there, Tensor) and is_sliced(there) and local_of(there).data_ptr() == value.data_ptr()
            made[name] = there if same else like(parameter, value)
    return made
