"""An optimizer as a value that travels: its class by name, its settings, and what it keeps for each parameter."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.errors import ModelError, UsageError
from cordee.sync.server.messages import Form, Group, Held, Rule

ON_DEVICE = ("capturable",)
"""Settings that only mean something where the parameters are on a GPU."""


def form_of(tensor: Tensor) -> Form:
    """Its shape and number format."""
    return Form(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def empty(form: Form) -> Tensor:
    """A tensor of this form; `ValueError` if there is no such format."""
    dtype = getattr(torch, form.dtype, None)
    if not isinstance(dtype, torch.dtype) or any(size < 0 for size in form.shape):
        raise ValueError(f"no tensor has the form {form}")
    return torch.empty(form.shape, dtype=dtype)


def describe(optimizer: Optimizer, places: Mapping[nn.Parameter, int]) -> Rule:
    """For those parameters that have a place; a group without any of them stays, so that groups keep their order."""
    kind = type(optimizer)
    groups = [
        Group([places[one] for one in group["params"] if one in places], settings)
        for group, settings in zip(optimizer.param_groups, settings_of(optimizer), strict=True)
    ]
    return Rule(f"{kind.__module__}:{kind.__qualname__}", _plain(optimizer.defaults, kind), groups)


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Of each group, as they are now."""
    kind = type(optimizer)
    return [_plain({k: v for k, v in group.items() if k != "params"}, kind) for group in optimizer.param_groups]


def _plain(settings: Mapping[str, Any], kind: type) -> dict[str, Any]:
    found = {}
    for name, value in settings.items():
        value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        value = False if name in ON_DEVICE else value
        try:
            msgspec.json.decode(msgspec.json.encode(value))
        except (TypeError, ValueError, msgspec.MsgspecError):
            raise UsageError(
                f"{kind.__name__} has the setting {name}={value!r}, which cannot be sent to a parameter server: only "
                "numbers, words and lists of them can. Use sync=allreduce"
            ) from None
        found[name] = value
    return found


def build(rule: Rule, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The optimizer of these parameters; `ValueError` if its class cannot be found here."""
    module, _, name = rule.kind.partition(":")
    try:
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"parameter servers cannot import the optimizer {name} from {module}: put its class into a module that "
            "can be imported, such as a file beside the job, or use sync=allreduce"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise ValueError(f"{rule.kind} is no optimizer")
    known = inspect.signature(kind.__init__).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in known.values())
    given = {name: _tuples(value) for name, value in rule.defaults.items() if takes_any or name in known}
    groups = [
        {
            **{name: _tuples(value) for name, value in group.settings.items()},
            "params": [parameters[i] for i in group.numbers],
        }
        for group in rule.groups
    ]
    return kind([group for group in groups if group["params"]] or groups[:1], **given)


def set_settings(optimizer: Optimizer, rule: Rule, settings: Sequence[Mapping[str, Any]]) -> None:
    """Give each group what it has now on the workers."""
    present = [now for group, now in zip(rule.groups, settings, strict=True) if group.numbers]
    for group, now in zip(optimizer.param_groups, present, strict=False):
        group.update({name: _tuples(value) for name, value in now.items()})


def _tuples(value: Any) -> Any:
    """JSON has lists where optimizers have tuples, such as betas."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def kept_by(optimizer: Optimizer, places: Mapping[nn.Parameter, int]) -> tuple[list[Held], list[Tensor]]:
    """What it keeps for these parameters, and its tensors."""
    held, tensors = [], []
    for parameter, number in places.items():
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                held.append(Held(number, name, form_of(value)))
                tensors.append(value.detach().cpu().contiguous())
            elif value is None or isinstance(value, (bool, int, float, str)):
                held.append(Held(number, name, value=value))
            else:
                raise ModelError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} called {name} for a parameter, which a "
                    "parameter server cannot hold: tensors, numbers and words it can. Use sync=allreduce"
                )
    return held, tensors


def room_for(held: Sequence[Held]) -> Iterator[Tensor]:
    """Empty tensors for those that follow."""
    return (empty(one.form) for one in held if one.form is not None)


def give_back(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], held: Sequence[Held], tensors: Sequence[Tensor]
) -> None:
    """Let the optimizer keep this for these parameters, in place of what it kept."""
    coming = iter(tensors)
    for parameter in parameters:
        optimizer.state.pop(parameter, None)
    for one in held:
        parameter = parameters[one.number]
        value = one.value if one.form is None else next(coming)
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
            value = value.to(parameter.device)
        optimizer.state.setdefault(parameter, {})[one.name] = value
