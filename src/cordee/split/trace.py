"""One forward pass, looked at: which layers' outputs reach which layer, by which functions, past which weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from cordee.split.layers import is_linear

Names = frozenset[str]


@dataclass
class Call:
    """What a module was given in its first call, and the results of all calls, of linear layers alone."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor] = field(default_factory=list)


@dataclass
class Trace:
    """What was seen in a forward pass."""

    calls: dict[str, Call] = field(default_factory=dict)
    """Of each module, in the order in which they were first called."""
    sources: dict[str, Names] = field(default_factory=dict)
    """For each linear layer, whose outputs come into its input with no other linear layer in between."""
    weights: dict[str, Names] = field(default_factory=dict)
    """The parameters that stand in between."""
    functions: dict[str, set[str]] = field(default_factory=dict)
    """By which functions the output of a layer goes on."""
    in_loss: Names = frozenset()
    """Whose outputs come into the loss with no other linear layer in between."""
    weights_in_loss: Names = frozenset()
    """The parameters that stand between these and the loss."""
    users: dict[str, set[str]] = field(default_factory=dict)
    """In whose forward passes each parameter is used, of the innermost module."""
    result: Any = None
    """What the pass returned."""

    def consumers(self, layer: str) -> list[str]:
        """The linear layers that the output of `layer` reaches."""
        return [one for one, sources in self.sources.items() if layer in sources]

    def acts_only_on(self, parameter: str, layer: str) -> bool:
        """Whether all that a parameter does goes through the input of this linear layer."""
        return parameter not in self.weights_in_loss and all(
            one == layer for one, weights in self.weights.items() if parameter in weights
        )


@contextmanager
def as_in_evaluation(model: nn.Module) -> Iterator[None]:
    """In here nothing is drawn, counted or taught, and layers are called one by one; then all is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    draws = torch.get_rng_state()
    try:
        for module, _ in modes:
            module.training = False
        torch.backends.mha.set_fastpath_enabled(False)  # it reads weights past the layers that hold them
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.set_rng_state(draws)
        for module, training in modes:
            module.training = training


def trace(model: nn.Module, run: Callable[[], Any]) -> Trace:
    """Look at `run()`, which calls the model and returns its loss or output."""
    seen = Trace()
    watch = _Watch(seen, {id(one): name for name, one in model.named_parameters()})
    hooks = []
    try:
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(partial(watch.begin, name), with_kwargs=True))
            hooks.append(module.register_forward_hook(partial(watch.end, name), with_kwargs=True))
        with as_in_evaluation(model), watch:
            seen.result = run()
        seen.in_loss, seen.weights_in_loss = watch.notes_of(seen.result)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


class _Watch(TorchFunctionMode):
    """Notes for each tensor the layers that it comes from, and the parameters on the way."""

    def __init__(self, seen: Trace, parameters: Mapping[int, str]) -> None:
        super().__init__()
        self._seen, self._parameters = seen, parameters
        self._of: dict[int, tuple[Names, Names]] = {}
        self._held: list[Tensor] = []
        """All tensors with a note, so that no other one gets the place of one in memory."""
        self._called = ["the loss"]
        """The modules in whose forward passes we are, the innermost last."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        sources, weights = self.notes_of((args, kwargs))
        if sources or weights:
            for source in sources:
                self._seen.functions.setdefault(source, set()).add(getattr(func, "__name__", str(func)))
            changed = args[:1] if getattr(func, "__name__", "") == "__setitem__" else ()
            self._mark([result, *changed], sources, weights)
            self._use((args, kwargs), result)
        return result

    def _use(self, values: Any, result: Any) -> None:
        for one in tree_leaves(values) if isinstance(result, Tensor) else ():
            if (name := self._parameters.get(id(one))) is not None:
                self._seen.users.setdefault(name, set()).add(self._called[-1])

    def _note(self, tensor: Tensor) -> tuple[Names, Names]:
        if (name := self._parameters.get(id(tensor))) is not None:
            return frozenset(), frozenset((name,))
        return self._of.get(id(tensor), (frozenset(), frozenset()))

    def _mark(self, what: Any, sources: Names, weights: Names) -> None:
        for one in tree_leaves(what):
            if isinstance(one, Tensor) and id(one) not in self._parameters:
                self._of[id(one)] = sources, weights
                self._held.append(one)

    def notes_of(self, values: Any) -> tuple[Names, Names]:
        """The layers that these come from, and the parameters on the way."""
        notes = [self._note(one) for one in tree_leaves(values) if isinstance(one, Tensor)]
        sources, weights = (frozenset().union(*(note[at] for note in notes)) for at in (0, 1))
        return sources, weights

    def begin(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called."""
        self._called.append(name)
        self._seen.calls.setdefault(name, Call(args, dict(kwargs)))
        if is_linear(module):
            sources, weights = self.notes_of((args, kwargs))
            self._seen.sources[name] = self._seen.sources.get(name, frozenset()) | sources
            self._seen.weights[name] = self._seen.weights.get(name, frozenset()) | weights

    def end(self, name: str, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """A module has returned; a linear layer's output comes from it alone."""
        self._called.pop()
        if is_linear(module):
            self._seen.calls[name].results.append(result)
            self._mark(result, frozenset((name,)), frozenset())
