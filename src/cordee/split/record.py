"""One forward pass as it happens: which modules are called, which operations run, and what each takes and gives.

Operations are seen as the user's code calls them (`TorchFunctionMode`), so that a tensor is the same object in all of
them. A value is one state of a tensor: an operation that writes into a tensor makes a new value of it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from cordee.core.errors import ModelError

READERS = frozenset(
    (
        *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__contains__", "__array__", "__index__"),
        *("__bool__", "__int__", "__float__", "__complex__"),
    )
)
"""Functions of torch that turn the numbers of a tensor into something of Python's."""


@dataclass(eq=False)
class Op:
    """One operation."""

    time: int
    name: str
    inputs: tuple[int, ...]
    """Values, each once."""
    reads: bool = False
    """Python sees its numbers."""
    writes: bool = False
    """It writes into a tensor that it was given."""
    draws: bool = False
    """It draws random numbers."""


@dataclass(eq=False)
class Call:
    """One call of a module's `forward`."""

    name: str
    module: nn.Module
    begin: int
    graded: bool
    """Whether gradients were recorded around it."""
    end: int = -1
    outputs: tuple[int, ...] = ()
    """The values of the tensors that it returned, in the order of the tree of its result."""
    gradients: tuple[bool, ...] = ()
    """Of each output, whether it requires gradients."""
    children: list[Call] = field(default_factory=list)
    stateful: bool = False
    """Whether it has parameters, or buffers that the pass changed."""


@dataclass(eq=False)
class Trace:
    """A recorded pass. `made` and `maker` tell of each value when and by which operation it came to be."""

    model: nn.Module
    calls: list[Call] = field(default_factory=list)
    """Those that no other call contains."""
    ops: list[Op] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    """-1: it was there before, as batches, parameters and buffers are."""
    maker: list[Op | None] = field(default_factory=list)
    parameters: dict[int, nn.Parameter] = field(default_factory=dict)
    """Values that are parameters of the model."""
    unknown: set[int] = field(default_factory=set)
    """Values that carry gradients, but whose operation was not seen."""
    results: tuple[int, ...] = ()
    """The values of what the pass returned."""
    changed: set[nn.Module] = field(default_factory=set)
    """Modules that have a buffer that the pass changed."""


def record(model: nn.Module, run: Callable[[], Any]) -> Trace:
    """What happens when `run` calls `model`; random state and buffers are as before afterwards."""
    trace = Trace(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(f"layer {name or 'model'!r} is a ScriptModule, which cannot be cut. Use the plain module")
    with unchanged(model) as changed, torch.enable_grad():
        recorder = _Recorder(trace)
        with patched(dict(model.named_modules()), recorder.watch), recorder:
            result = run()
        trace.results = recorder.values_of(result)
        trace.changed = changed()
    _mark_stateful(trace.calls, trace.changed)
    return trace


def _mark_stateful(calls: list[Call], changed: set[nn.Module]) -> None:
    for call in calls:
        parts = list(call.module.modules())
        call.stateful = any(True for _ in call.module.parameters()) or not changed.isdisjoint(parts)
        _mark_stateful(call.children, changed)


@contextmanager
def patched(
    modules: Mapping[str, nn.Module], wrap: Callable[[str, nn.Module, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Put `wrap(name, module, forward)` in the place of each module's `forward`, as long as this lasts."""
    before = {module: module.__dict__.get("forward") for module in modules.values()}
    try:
        for name, module in modules.items():
            module.forward = wrap(name, module, module.forward)
        yield
    finally:
        for module, forward in before.items():
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.__dict__["forward"] = forward


@contextmanager
def unchanged(model: nn.Module) -> Iterator[Callable[[], set[nn.Module]]]:
    """Undo afterwards what a pass does to random state and buffers; gives a function that names changed modules."""
    places = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    copies = [None if buffer is None else buffer.detach().clone() for _, _, buffer in places]
    draws, numbers = random.getstate(), np.random.get_state()
    state = random_state(model)

    def changed() -> set[nn.Module]:
        return {
            module
            for (module, name, buffer), copy in zip(places, copies, strict=True)
            if module._buffers.get(name) is not buffer or (buffer is not None and not _same(buffer, copy))
        }

    try:
        yield changed
    finally:
        with torch.no_grad():
            for (module, name, buffer), copy in zip(places, copies, strict=True):
                module._buffers[name] = buffer
                if buffer is not None and copy is not None and not _same(buffer, copy):
                    buffer.copy_(copy)
        set_random_state(model, state)
        random.setstate(draws)
        np.random.set_state(numbers)


def _same(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def random_state(model: nn.Module) -> tuple[Tensor, ...]:
    """Of the generators that layers of this model draw from by default."""
    device = _device_of(model)
    return (torch.get_rng_state(), *((torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()))


def set_random_state(model: nn.Module, state: tuple[Tensor, ...]) -> None:
    """Go back to a state that `random_state` gave."""
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1], _device_of(model))


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


class _Recorder(TorchFunctionMode):
    """Fills a trace while it is entered."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace
        self._time = 0
        self._open: list[Call] = []
        self._known: dict[int, tuple[int, int]] = {}
        """By `id`: value and version of a tensor."""
        self._alive: list[Tensor] = []
        """Keeps ids from being used again."""
        self._writers: dict[int, Op] = {}
        """The last operation that wrote into a piece of memory."""
        self._parameters = {id(one) for one in trace.model.parameters()}

    def values_of(self, result: Any) -> tuple[int, ...]:
        """The values of the tensors in a nested result."""
        return tuple(self._value(leaf) for leaf in _leaves(result))

    def watch(self, name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A `forward` that notes its calls."""

        def noting(*args: Any, **kwargs: Any) -> Any:
            call = Call(name, module, self._tick(), torch.is_grad_enabled())
            (self._open[-1].children if self._open else self._trace.calls).append(call)
            self._open.append(call)
            result = forward(*args, **kwargs)
            self._open.pop()
            _register(result)
            call.outputs = self.values_of(result)
            call.gradients = tuple(leaf.requires_grad for leaf in _leaves(result))
            call.end = self._tick()
            return result

        return noting

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        given = _leaves((args, kwargs))
        inputs = dict.fromkeys(self._value(one) for one in given)
        versions = [_version(one) for one in given]
        state = random_state(self._trace.model)
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        written = [one for one, version in zip(given, versions, strict=True) if _version(one) != version]
        made = _leaves(result)
        op = Op(self._tick(), name, tuple(inputs), name in READERS, bool(written))
        op.draws = not all(map(torch.equal, state, random_state(self._trace.model)))
        if made or written or op.reads or op.draws:
            self._trace.ops.append(op)
        for one in written:
            self._writers[_memory(one)] = op
            self._enter(one, op)
        for one in made:
            if id(one) not in self._known or not any(one is other for other in given):
                self._enter(one, op)
        return result

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _value(self, tensor: Tensor) -> int:
        """Which value a tensor is now."""
        value, version = self._known.get(id(tensor), (-1, -1))
        if value < 0:
            value = self._enter(tensor, None)
            if id(tensor) in self._parameters:
                self._trace.parameters[value] = tensor  # type: ignore[assignment]
            elif tensor.grad_fn is not None:
                self._trace.unknown.add(value)
        elif version != _version(tensor) and id(tensor) not in self._parameters:  # written by another view of it
            value = self._enter(tensor, self._writers.get(_memory(tensor)))
        return value

    def _enter(self, tensor: Tensor, op: Op | None) -> int:
        value = len(self._trace.made)
        self._trace.made.append(-1 if op is None else op.time)
        self._trace.maker.append(op)
        self._known[id(tensor)] = (value, _version(tensor))
        self._alive.append(tensor)
        return value


def _leaves(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _register(result: Any) -> None:
    """Let dataclasses that modules return be taken apart as tuples and dicts are."""
    for leaf in pytree.tree_leaves(result):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            pytree.register_dataclass(type(leaf))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _memory(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse tensors, and those inside of vmap
        return id(tensor)
