"""A traced model as a module: carries out a recipe, one tensor operation after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

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
        self._verbs = [verb_named(verb) for _, verb, _, _ in recipe.nodes]
        self._last_uses = _last_uses(recipe)
        self._defaults = {name: form for name, form in recipe.kwargs.items() if not _refs(form)}
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model as it was called when it was traced, with a batch of any size."""
        recipe = self._recipe
        values: dict[str, Any] = dict(_bind((recipe.args, recipe.kwargs), (args, {**self._defaults, **kwargs})))
        device = next((value.device for value in values.values()), None)
        for node, name in recipe.state.items():
            values[node] = getattr(_home(self, name), name.rpartition(".")[2])
        for name in recipe.constants:
            values[name] = getattr(self, f"_constant_{name}")
        for (result, _, given, named), verb, last in zip(recipe.nodes, self._verbs, self._last_uses, strict=True):
            values[result] = verb(*_fill(given, values, device), **_fill(named, values, device))
            for name in last:
                del values[name]
        return _fill(recipe.output, values, device)


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
    last: list[list[str]] = []
    for name, _, args, kwargs in reversed(recipe.nodes):
        used = _refs((args, kwargs)) | {name}
        last.append(sorted(used - needed))
        needed |= used
    return last[::-1]


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


def _bind(form: Any, given: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Inputs by the names of their nodes; `UsageError` for a call of another form than the traced one."""
    entries, spec = tree_flatten_with_path(form)
    try:
        leaves = spec.flatten_up_to(given)
    except ValueError as problem:
        shown, expected = tree_map(_show, given), tree_map(_show, form)
        raise UsageError(f"arguments: got {shown}, expected {expected}, as when the model was saved.") from problem
    for (path, wanted), leaf in zip(entries, leaves, strict=True):
        if not _fits(leaf, wanted):
            expected = f"{_show(wanted)}, as when the model was saved"
            raise UsageError(f"argument {keystr(path[1:])}: got {_show(leaf)}, expected {expected}.")
        if isinstance(wanted, Ref):
            yield wanted.name, leaf


def _fits(given: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Ref):
        return bool(given == wanted)
    sizes = wanted.shape or ()
    if not isinstance(given, torch.Tensor) or given.dim() != len(sizes):
        return False
    return all(size in (None, actual) for size, actual in zip(sizes, given.shape, strict=True))


def _show(value: Any) -> str:
    if isinstance(value, (Ref, torch.Tensor)):
        return f"a tensor of shape ({', '.join('n' if size is None else str(size) for size in value.shape or ())})"
    return repr(value)
