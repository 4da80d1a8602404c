"""The files that a finished run leaves: its weights, and the model as a program that needs no source code."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from cordee.core.errors import CheckpointError
from cordee.state.files import replace_file, write_tensors
from cordee.state.layout import tensor_bytes
from cordee.state.naming import Snapshot, fingerprint
from cordee.state.program import Program, Recipe, Ref, verb_name

WEIGHTS = "model.safetensors"
"""The weights' file in a run's folder."""

PROGRAM = "program.safetensors"
"""The traced model's file in a run's folder: the recipe in its header, constant tensors as its content."""

_COMPARED = 1_000_000  # numbers of an output
_ROWS = 3  # of the example that is traced: neither 0 nor 1, which torch.export would take for fixed sizes


def save_model(path: Path, snapshot: Snapshot) -> str:
    """Write the weights by `state_dict` names, tied ones once, with aliases and a checksum; returns the checksum."""
    weights = snapshot.weights()
    checksum = fingerprint(weights)
    header = {"format": "pt", "aliases": json.dumps(snapshot.aliases), "sha256": checksum}
    replace_file(path, tensor_bytes(weights.values()), lambda file: write_tensors(file, weights, header))
    return checksum


@dataclass(frozen=True)
class Traced:
    """A model as a recipe."""

    recipe: Recipe
    constants: dict[str, torch.Tensor]
    """Tensors that it needs and that are not in the model's `state_dict`."""
    example: Any
    """The call by which it was traced: arguments by place, and by name."""


def trace_program(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Traced:
    """Trace `model` as called with `args` and `kwargs`; its numbers are not touched.

    Every input tensor whose first size is that of the first one has a batch there, which may be of any size later. The
    model is traced in evaluation mode and left as it was. `CheckpointError` says why a model cannot be traced.
    """
    with _saying_why(), _evaluation(model):
        return _trace(model, _rows((tuple(args), dict(kwargs or {})), _ROWS))


def save_program(path: Path, model: nn.Module, traced: Traced) -> None:
    """Compare what was traced with the model, and write it without its weights; `CheckpointError` if they differ."""
    recipe, constants = traced.recipe, traced.constants
    with _saying_why(), _evaluation(model):
        state = {k: v for k, v in model.state_dict(keep_vars=True).items() if isinstance(v, torch.Tensor)}
        _compare(model, Program(recipe, state, constants), traced.example)
    header = {"program": json.dumps(recipe.to_json(), allow_nan=False), "torch": torch.__version__}
    size = len(header["program"]) + tensor_bytes(constants.values())
    replace_file(path, size, lambda file: write_tensors(file, constants, header))


def called_with(model: nn.Module, *ways: Callable[[], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the first of these ways that calls `model` gives to it, in evaluation mode; the call itself does not happen.

    So a model is traced as its job uses it, whatever the fields of a batch are called. `CheckpointError` if none does.
    """
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))
        raise _SeenError

    hook = model.register_forward_pre_hook(see, prepend=True, with_kwargs=True)
    try:
        with _saying_why(), _evaluation(model):
            for way in ways:
                with suppress(Exception):  # ours, or one of a way that does not work
                    way()
                if calls:
                    return calls[0]
            raise CheckpointError("the job's objective does not call it as a whole, by model(...).")
    finally:
        hook.remove()


class _SeenError(Exception):
    """The call of a model was seen: nothing more is needed of it."""


@contextmanager
def _saying_why() -> Iterator[None]:
    """Raise one `CheckpointError` for whatever keeps a model from being saved as a program."""
    try:
        yield
    except Exception as problem:
        said = (str(problem).strip().splitlines() or [""])[0]
        reason = said if isinstance(problem, CheckpointError) else f"{type(problem).__name__}: {said}"
        raise CheckpointError(
            f"the model cannot be saved as a program. {reason.rstrip('.')}. The training and its weights are not "
            "affected; load them with cordee.load(run, model=...)."
        ) from problem


@contextmanager
def _quiet() -> Iterator[None]:
    """Where it fails, torch prints its half-made graph; the error itself says in one line why."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _trace(model: nn.Module, example: Any) -> Traced:
    from torch import export  # takes more than a second to import, and only the end of a run needs it
    from torch.export.graph_signature import InputKind

    shapes: Any = export.ShapesCollection()  # type: ignore[no-untyped-call]
    for leaf in pytree.tree_leaves(example):
        if _has_batch(leaf, _ROWS):
            shapes[leaf] = {0: export.Dim.DYNAMIC}
    with _quiet():
        program = export.export(model, *example, dynamic_shapes=shapes, strict=False)
    state: dict[str, str] = {}
    constants: dict[str, torch.Tensor] = {}
    inputs: list[Any] = []
    places = [node for node in program.graph.nodes if node.op == "placeholder"]
    for place, spec in zip(places, program.graph_signature.input_specs, strict=True):
        if spec.kind == InputKind.USER_INPUT:
            shape = getattr(place.meta.get("val"), "shape", None)
            sizes = None if shape is None else tuple(size if type(size) is int else None for size in shape)
            inputs.append(spec.arg.value if sizes is None else Ref(place.name, sizes))
        elif spec.target in program.state_dict:
            state[place.name] = spec.target
        elif isinstance(tensor := program.constants.get(spec.target), torch.Tensor):
            constants[place.name] = tensor
        else:
            raise CheckpointError(f"it uses {spec.target}, which is not a tensor.")
    given_args, given_kwargs = pytree.tree_unflatten(inputs, program.call_spec.in_spec)
    nodes = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    if strange := [node.name for node in nodes if node.op != "call_function"]:
        raise CheckpointError(f"it holds a part with a control flow of its own ({strange[0]}).")
    flat = [_refer(value) for value in program.graph.output_node().args[0]]
    recipe = Recipe(
        args=given_args,
        kwargs=given_kwargs,
        nodes=[(node.name, verb_name(node.target), _refer(node.args), _refer(node.kwargs)) for node in nodes],
        output=pytree.tree_unflatten(flat, program.call_spec.out_spec),
        state=state,
        parameters=[name for name, _ in model.named_parameters(remove_duplicate=False)],
        constants=list(constants),
    )
    return Traced(Recipe.from_json(json.loads(json.dumps(recipe.to_json()))), constants, example)


def _refer(value: Any) -> Any:
    """Arguments of a graph's node with references by name."""
    return pytree.tree_map_only(torch.fx.Node, lambda node: Ref(node.name), value)


def _has_batch(leaf: Any, size: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == size


def _rows(example: Any, count: int) -> Any:
    """The example with exactly `count` samples, repeated or cut."""
    tensors = [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    size = len(tensors[0]) if tensors else 0
    if not size:
        raise CheckpointError("a model can only be traced with an example batch of at least one sample, as a tensor.")

    def cut(leaf: Any) -> Any:
        return leaf[torch.arange(count, device=leaf.device) % size] if _has_batch(leaf, size) else leaf

    return pytree.tree_map(cut, example)


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, without gradients; modes and buffers are given back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would put inference-only operations into the recipe
    model.eval()
    with torch.no_grad():
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for module, mode in modes:
                module.training = mode
            for buffer, before in buffers:
                buffer.copy_(before)


def _compare(model: nn.Module, program: Program, example: Any) -> None:
    """Refuse a trace that does not compute what the model computes, for the traced batch and for a single sample."""
    for count in (_ROWS, 1):
        args, kwargs = _rows(example, count)
        wanted, got = pytree.tree_leaves(model(*args, **kwargs)), pytree.tree_leaves(program(*args, **kwargs))
        try:
            some = [[_some(leaf) for leaf in leaves] for leaves in (got, wanted)]
            torch.testing.assert_close(*some, rtol=1e-3, atol=1e-4, equal_nan=True)
        except AssertionError as problem:
            raise CheckpointError(f"traced, it gives another result for a batch of {count}.") from problem


def _some(leaf: Any) -> Any:
    """What is compared of a tensor: its shape is that of both, and of many numbers some, spread over all of them."""
    if not isinstance(leaf, torch.Tensor) or leaf.numel() <= _COMPARED:
        return leaf
    return leaf.flatten()[:: -(-leaf.numel() // _COMPARED)]
