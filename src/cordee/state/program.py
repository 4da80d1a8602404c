"""A traced model: as data, a list of tensor operations by name, kept as JSON; and as a module that carries it out.

`torch.export.load` cannot be used for files from elsewhere (torch 2.13): it unpickles sample inputs, weights and
constants, and even an archive of JSON alone runs code, because its symbolic sizes go through sympy, which evaluates
them as Python. So the graph that `torch.export` makes is kept in a form of our own, whose only verbs are operations of
torch itself, and which runs without evaluating any text.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from cordee.core.errors import CheckpointError, UsageError
from cordee.state.plain import from_json, to_json

FORMAT = 1

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "pow", "getitem",
        "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_",
    )},
    **{f"torch.{name}": getattr(torch, name) for name in (
        "sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "sym_ite",
    )},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
}  # fmt: skip

# Operations with a leading underscore are internal and may trust their arguments; these few appear in ordinary models.
_INTERNAL = {
    "_adaptive_avg_pool2d",
    "_assert_scalar",
    "_assert_tensor_metadata",
    "_log_softmax",
    "_native_batch_norm_legit_no_training",
    "_softmax",
    "_to_copy",
    "_unsafe_view",
    "_weight_norm_interface",
}

# Text may choose a variant of an operation. Anything else that takes text (a file's name, above all) is refused.
_TEXT_ARGUMENTS = {
    "UPLO", "approximate", "assert_msg", "driver", "equation", "indexing", "interpolation", "mode", "norm", "ord", "p",
    "pad_mode", "padding", "padding_side", "reduce", "rounding_mode", "side",
}  # fmt: skip

_PLAIN = (type(None), bool, int, float, str, tuple, dict, list, immutable_dict, immutable_list)
_NAMES = {function: name for name, function in _FUNCTIONS.items()}
_NAMED_CONSTANTS = {"$dtype": torch.dtype, "$layout": torch.layout, "$memory_format": torch.memory_format}


@dataclass(frozen=True)
class Ref:
    """The value of an earlier node; as an input also its shape, None where any size will do."""

    name: str
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True)
class Here:
    """The device that the inputs are on, whatever it was when the model was traced."""


@dataclass(frozen=True)
class Recipe:
    """A traced model without its weights; values in it may hold `Ref` and `Here`."""

    args: Any
    kwargs: Any
    nodes: list[tuple[str, str, Any, Any]]
    """Operations: the name of the result, that of the operation, its arguments by place and by name."""
    output: Any
    state: dict[str, str]
    """Names of nodes that are parameters and buffers, each with its name in the model's `state_dict`."""
    parameters: list[str]
    """Which names of the `state_dict` are parameters."""
    constants: list[str]
    """Names of nodes whose tensors are kept with the recipe."""

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON."""
        packed = {one.name: to_json(getattr(self, one.name), "the program", _pack_leaf) for one in fields(self)}
        return {"format": FORMAT, **packed}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Recipe:
        """Read what `to_json` wrote; nothing is run."""
        if content.get("format") != FORMAT:
            raise CheckpointError(
                f"the program has format {content.get('format')!r}; this version of Cordée reads format {FORMAT}. "
                "Pass model= instead, or read it with the version that wrote it."
            )
        return Recipe(**{one.name: from_json(content[one.name], _unpack_leaf) for one in fields(Recipe)})


def verb_named(name: str) -> Callable[..., Any]:
    """The function for a name such as `aten.linear.default`, or `CheckpointError` for what a program may not do."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    family, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    if family == "aten" and overload.isidentifier() and (packet[:1].isalpha() or packet in _INTERNAL):
        found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if isinstance(found, torch._ops.OpOverload) and _is_plain(found):
            return found
    raise CheckpointError(
        f"the program uses {name!r}, which is not among the tensor operations that a saved model may use."
    )


def verb_name(target: Any) -> str:
    """The name under which a program may call `target`; `CheckpointError` if it may not."""
    name = _NAMES.get(target, str(target))
    verb_named(name)
    return name


def _is_plain(found: torch._ops.OpOverload) -> bool:
    """Whether an operation only computes: known to the dispatcher, and takes no text but the name of a variant."""
    schema = found._schema
    full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
    texts = {argument.name for argument in schema.arguments if "str" in str(argument.type)}
    return texts <= _TEXT_ARGUMENTS and torch._C._dispatch_has_kernel(full)


def _pack_leaf(value: Any, name: str) -> Any:
    if isinstance(value, Ref):
        return {"$ref": value.name} if value.shape is None else {"$ref": value.name, "shape": list(value.shape)}
    if isinstance(value, (Here, torch.device)):
        return {"$here": True}
    for tag, kind in _NAMED_CONSTANTS.items():
        if isinstance(value, kind):
            return {tag: str(value).removeprefix("torch.")}
    if type(value) in _PLAIN:
        return None
    raise CheckpointError(f"a saved model cannot hold {type(value).__name__} ({value!r}): only tensors, numbers, text, "
                          "tuples, lists and dicts go in and out of it.")  # fmt: skip


def _unpack_leaf(tag: str, value: Mapping[str, Any]) -> Any:
    if tag == "$ref":
        return Ref(value[tag], tuple(value["shape"]) if "shape" in value else None)
    if tag == "$here":
        return Here()
    constant = getattr(torch, value[tag], None) if tag in _NAMED_CONSTANTS else None
    if constant is None or not isinstance(constant, _NAMED_CONSTANTS[tag]):
        raise CheckpointError(f"the program holds {value!r}, which this version of Cordée does not know.")
    return constant


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
