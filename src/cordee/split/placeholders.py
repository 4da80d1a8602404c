"""What stands in the place of layers that lie on other stages: results of the right shapes, without their numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cordee.core.errors import ModelError
from cordee.group.sliced import is_sliced, local_of
from cordee.split.layers import apart
from cordee.split.record import unchanged


@dataclass(frozen=True)
class Shape:
    """Of one tensor: all but its numbers."""

    size: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Shape:
        """That of `tensor`."""
        return cls(tensor.shape, tensor.dtype, tensor.device)

    def placeholder(self, *, written: bool = False) -> Tensor:
        """Zeros; unless they may be `written` into, without memory."""
        if written:
            return torch.zeros(self.size, dtype=self.dtype, device=self.device)
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.size)


@dataclass(frozen=True)
class _Same:
    """A result that is what was given at this place."""

    place: int


class StandIns:
    """Results of layers that are not here, by the shapes of what they are given."""

    def __init__(self, shapes: Mapping[tuple[nn.Module, str], Shape], *, written: bool) -> None:
        """`shapes`: of parameters that are here, by module and name; they may be sharded later on.

        `written`: code between the layers writes into their results.
        """
        self._shapes, self._written = shapes, written
        self._known: dict[Hashable, tuple[list[Any], pytree.TreeSpec]] = {}

    def result(self, name: str, module: nn.Module, forward: Callable[..., Any], given: Any) -> Any:
        """What `forward(*args, **kwargs)` would return, `given` as (args, kwargs), with placeholders for tensors."""
        leaves, tree = pytree.tree_flatten(given)
        key = (name, module.training, _casts(), str(tree), tuple(map(_described, leaves)))
        if key not in self._known:
            with self._gathered(module):
                self._known[key] = _infer(name, module, forward, given)
        shapes, tree = self._known[key]
        return pytree.tree_unflatten([self._made(one, leaves) for one in shapes], tree)

    @contextmanager
    def _gathered(self, module: nn.Module) -> Iterator[None]:
        """In here placeholders stand in for those of its parameters that are sharded."""
        parts = [(part, name, one) for part in module.modules() for name, one in part._parameters.items()]
        sharded = [(part, name, one) for part, name, one in parts if one is not None and is_sliced(one, "shard")]
        for part, name, _ in sharded:
            part._parameters[name] = nn.Parameter(self._shapes[part, name].placeholder(), requires_grad=False)
        try:
            yield
        finally:
            for part, name, one in sharded:
                part._parameters[name] = one

    def _made(self, one: Any, leaves: list[Any]) -> Any:
        if isinstance(one, _Same):
            return leaves[one.place]
        return one.placeholder(written=self._written) if isinstance(one, Shape) else one


def _infer(name: str, module: nn.Module, forward: Callable[..., Any], given: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Shapes of a result: computed without numbers, or where the code looks at numbers, with zeros."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes a moment; the way torch.compile finds shapes

    leaves, tree = pytree.tree_flatten(given)
    copies = [_copied(one) for one in leaves]
    with torch.no_grad(), unchanged(module), apart():
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                passed = [mode.from_tensor(one) if isinstance(one, Tensor) else one for one in copies]
                args, kwargs = pytree.tree_unflatten(passed, tree)
                made, made_tree = pytree.tree_flatten(forward(*args, **kwargs))
        except Exception:
            passed = [torch.zeros_like(one) if isinstance(one, Tensor) else one for one in leaves]
            args, kwargs = pytree.tree_unflatten(passed, tree)
            try:
                made, made_tree = pytree.tree_flatten(forward(*args, **kwargs))
            except Exception as error:
                raise ModelError(
                    f"layer {name!r} is on another stage, and the shape of its result could not be found: with zeros "
                    f"for inputs and parameters it fails with {type(error).__name__}: {error}. Let it accept zeros"
                ) from error
    places = {id(one): place for place, one in enumerate(passed) if isinstance(one, Tensor) or _is_object(one)}
    return [
        _Same(places[id(one)]) if id(one) in places else Shape.of(one) if isinstance(one, Tensor) else one
        for one in made
    ], made_tree


def _copied(leaf: Any) -> Any:
    """What a layer may change, such as a cache of keys and values: it must not keep tensors without numbers."""
    try:
        return copy.deepcopy(leaf) if _is_object(leaf) and not isinstance(leaf, Tensor) else leaf
    except Exception:  # a user's object may refuse with anything
        return leaf


def _is_object(leaf: Any) -> bool:
    return not isinstance(leaf, (int, float, str, bytes, type(None), torch.dtype, torch.device))


def _described(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return Shape.of(leaf)
    return (type(leaf), None if _is_object(leaf) or isinstance(leaf, float) else leaf)


def _casts() -> Hashable:
    return tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))


def refuse_unplanned(model: nn.Module, gates: AbstractSet[str], passing: Callable[[], bool]) -> None:
    """Refuse calls of layers that were not called when the stages were planned: on most workers they have no numbers.

    `gates` are those that were called; `passing`: whether code between them runs now. To be called while the model has
    all its parameters.
    """

    def refusing(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            if passing():
                raise ModelError(
                    f"layer {name!r} was called, but not when the stages were planned, with other samples. Let the "
                    "forward pass call the same layers for every batch, or leave pipeline= out of the plan"
                )
            return forward(*args, **kwargs)

        return refuse

    called = {model.get_submodule(name) for name in gates}
    inside = {part for one in called for part in one.modules()}
    for name, module in model.named_modules():
        if module not in inside and called.isdisjoint(module.modules()) and any(True for _ in module.parameters()):
            module.forward = refusing(name, module.forward)


def drop(module: nn.Module, name: str) -> None:
    """Put a placeholder in the place of a parameter or buffer, which is not one of `module`'s any more."""
    held = module._parameters if name in module._parameters else module._buffers
    tensor = held.pop(name)
    if tensor is not None:
        # Buffers have memory: a layer that changes its own is tried with zeros where its code looks at numbers.
        setattr(module, name, Shape.of(local_of(tensor)).placeholder(written=held is module._buffers))
