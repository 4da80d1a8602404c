"""A traced model as a module: carries out a recipe, one tensor operation after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from cordee.core.errors import CheckpointError, UsageError
from cordee.state.recipe import Here, Recipe, Ref, verb_named


class Program(nn.Module):
    """A traced model: same parameters under the same names, same outputs; always in evaluation mode."""

    def __init__(
        self, recipe: Recipe, weights: Mapping[str, torch.Tensor], constants: Mapping[str, torch.Tensor]
    ) -> None:
        """Join a recipe with the model's weights (tied ones under each of their names) and its constants."""
        super().__init__()
        wanted = {*recipe.state.values(), *recipe.parameters}
        lost = sorted((wanted - set(weights)) | (set(recipe.constants) - set(constants)))
        if lost:
            raise CheckpointError(f"the program needs {lost[0]}, which its files do not hold. Pass model= instead.")
        made: dict[int, nn.Parameter] = {}
        for name in recipe.parameters:  # in the model's own order, which files do not keep
            tensor = weights[name]
            trained = tensor.is_floating_point() or tensor.is_complex()
            kept = made.setdefault(id(tensor), nn.Parameter(tensor, requires_grad=trained))
            _home(self, name).register_parameter(name.rpartition(".")[2], kept)
        for name in sorted(weights.keys() - set(recipe.parameters)):
            _home(self, name).register_buffer(name.rpartition(".")[2], weights[name])
        for name in recipe.constants:
            self.register_buffer(f"_constant_{name}", constants[name], persistent=False)
        self._recipe = recipe
        uses = zip(recipe.nodes, _last_uses(recipe), strict=True)
        self._steps = [(node, verb_named(node.verb), last) for node, last in uses]
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model as it was called when it was traced, with a batch of any size."""
        values: dict[str, Any] = {}
        _bind(self._recipe.args, args, values, "the arguments")
        _bind(self._recipe.kwargs, kwargs, values, "the named arguments")
        device = next((value.device for value in values.values() if isinstance(value, torch.Tensor)), None)
        for node, name in self._recipe.state.items():
            values[node] = getattr(_home(self, name), name.rpartition(".")[2])
        for name in self._recipe.constants:
            values[name] = getattr(self, f"_constant_{name}")
        for step, verb, last in self._steps:
            values[step.name] = verb(*_fill(step.args, values, device), **_fill(step.kwargs, values, device))
            for name in last:
                del values[name]
        return _fill(self._recipe.output, values, device)


def _home(module: nn.Module, name: str) -> nn.Module:
    """The submodule that owns the tensor called `name`, made on the way."""
    for part in name.split(".")[:-1]:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    return module


def _last_uses(recipe: Recipe) -> list[list[str]]:
    """For every node the values that nothing later needs, so that memory is freed as in the model itself."""
    needed = _refs(recipe.output)
    result: list[list[str]] = []
    for node in reversed(recipe.nodes):
        used = _refs(node.args) | _refs(node.kwargs) | {node.name}
        result.append(sorted(used - needed))
        needed |= used
    return result[::-1]


def _refs(value: Any) -> set[str]:
    return {leaf.name for leaf in tree_leaves(value) if isinstance(leaf, Ref)}


def _fill(value: Any, values: Mapping[str, Any], device: torch.device | None) -> Any:
    """`value` with every `Ref` and `Here` replaced by what it stands for."""
    if isinstance(value, Ref):
        return values[value.name]
    if isinstance(value, (list, tuple)):
        return type(value)([_fill(item, values, device) for item in value])
    if isinstance(value, dict):
        return {key: _fill(item, values, device) for key, item in value.items()}
    return device if isinstance(value, Here) else value


def _bind(form: Any, given: Any, values: dict[str, Any], where: str) -> None:
    """Give the inputs their names, refusing a call of another form than the traced one."""
    if isinstance(form, Ref):
        shape = tuple(given.shape) if isinstance(given, torch.Tensor) else None
        if shape is None or form.shape is None or len(shape) != len(form.shape):
            raise _misfit(where, given, form)
        if any(size not in (None, actual) for size, actual in zip(form.shape, shape, strict=True)):
            raise _misfit(where, given, form)
        values[form.name] = given
    elif isinstance(form, dict):
        optional = {key for key, item in form.items() if not _refs(item)}
        if not isinstance(given, Mapping) or not set(form) - optional <= set(given) <= set(form):
            raise _misfit(where, given, form)
        for key, item in given.items():
            _bind(form[key], item, values, f"{where}, {key!r}")
    elif isinstance(form, (list, tuple)):
        if not isinstance(given, (list, tuple)) or len(given) != len(form):
            raise _misfit(where, given, form)
        for index, (part, item) in enumerate(zip(form, given, strict=True)):
            _bind(part, item, values, f"{where}, {index}")
    elif given != form:
        raise _misfit(where, given, form)


def _misfit(where: str, given: Any, form: Any) -> UsageError:
    """The error for a call of another form than the traced one."""

    def show(value: Any) -> str:
        if isinstance(value, Ref):
            return f"a tensor of shape ({', '.join('n' if size is None else str(size) for size in value.shape or ())})"
        if isinstance(value, torch.Tensor):
            return f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{key!r}: {show(item)}" for key, item in value.items()) + "}"
        if isinstance(value, (list, tuple)):
            return "(" + ", ".join(show(item) for item in value) + ")"
        return repr(value)

    return UsageError(f"{where}: got {show(given)}, expected {show(form)}, as when the model was saved.")
