"""What the user's functions and models hold: generators, tensors, and state that a pass may change.

A pass of the preflight must leave no trace. What can be reached from the objective and the models (attributes,
closures, globals that the code names) is remembered and put back; tensors are copied only when a pass writes to them.
Installed packages are not walked through, except for the modules of a model.
"""

from __future__ import annotations

import contextlib
import functools
import random
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cordee.diagnose.misfit import is_users

MOST_ITEMS = 1_000
"""A container with more items is data, not state."""
MOST_OBJECTS = 500_000
SMALL_BYTES = 1_000_000
"""An array of NumPy's up to this size is copied at once; torch says when it writes, NumPy does not."""

TABLES = ("_modules", "_buffers", "_parameters")
"""Of a module: what they hold is called by the name of the module itself."""
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device, types.BuiltinFunctionType)


@dataclass(frozen=True)
class _Place:
    """Something that holds values by key: how they are read, and how they are put back."""

    name: str
    read: Callable[[], dict[Any, Any]]
    write: Callable[[dict[Any, Any]], None]
    keyed: bool = True
    """Whether a value is called by its key, behind the name of the place."""

    def changed(self, before: dict[Any, Any]) -> list[str]:
        """The names of values that are not those of `before`."""
        now = self.read()
        keys = [key for key in before | now if key not in now or key not in before or now[key] is not before[key]]
        return [_join(self.name, key) for key in keys] if self.keyed else [self.name] * bool(keys)


class Holdings:
    """Everything within reach of some roots, walked through once."""

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        """Walk from these named objects; the present state is the one to come back to."""
        self.generators: list[Any] = []
        self._places: list[_Place] = []
        self._tensors: dict[int, list[tuple[str, Tensor]]] = {}
        """By the memory that they lie in."""
        self._copies: dict[int, list[Tensor]] = {}
        """Of what was written to, as it was at first."""
        self._seen: dict[int, Any] = {}  # by id, with the object, so that no id is used twice
        ahead = list(roots)[::-1]
        while ahead and len(self._seen) < MOST_OBJECTS:
            name, thing = ahead.pop()
            if id(thing) not in self._seen and not isinstance(thing, _PLAIN):
                self._seen[id(thing)] = thing
                ahead += list(self._inside(name, thing))[::-1]
        self._before = [place.read() for place in self._places]

    @torch.no_grad()
    def before_write(self, tensor: Tensor) -> None:
        """An operator is about to write to `tensor`: copy what lies there, if it is within reach."""
        memory = _memory(tensor)
        if memory in self._tensors and memory not in self._copies:
            self._copies[memory] = [one.detach().clone() for _, one in self._tensors[memory]]

    def changed(self) -> list[str]:
        """The names of values that were replaced, and of tensors that hold something else."""
        pairs = zip(self._places, self._before, strict=True)
        replaced = [name for place, before in pairs for name in place.changed(before)]
        return replaced + [name for name, tensor, copy in self._written() if not torch.equal(tensor.detach(), copy)]

    @torch.no_grad()
    def bring_back(self, names: Collection[str] | None = None) -> None:
        """Put back everything that was changed, or what has one of these names."""
        for place, before in zip(self._places, self._before, strict=True):
            changed = place.changed(before)
            if changed if names is None else not set(changed).isdisjoint(names):
                place.write(before)
        for name, tensor, copy in self._written():
            if names is None or name in names:
                tensor.data.copy_(copy)

    def _written(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        for memory, copies in self._copies.items():
            for (name, tensor), copy in zip(self._tensors[memory], copies, strict=True):
                yield name, tensor, copy

    def _inside(self, name: str, thing: Any) -> Iterator[tuple[str, Any]]:
        """What an object leads to, by name; the object itself is put where it belongs."""
        if isinstance(thing, Tensor):
            self._tensors.setdefault(_memory(thing), []).append((name, thing))
        elif isinstance(thing, np.ndarray):
            if thing.nbytes <= SMALL_BYTES and thing.flags.writeable and not thing.dtype.hasobject:
                tensor = torch.from_numpy(thing.reshape(-1).view(np.uint8))
                self._tensors[_memory(tensor)] = [(name, tensor)]
                self.before_write(tensor)
        elif isinstance(thing, GENERATORS):
            self.generators.append(thing)
        elif isinstance(thing, types.FunctionType):
            if is_users(thing):
                yield from self._of_function(name, thing)
        elif isinstance(thing, types.MethodType):
            yield from ((name, thing.__func__), (name.rpartition(".")[0], thing.__self__))
        elif isinstance(thing, functools.partial):
            yield from ((name, part) for part in (thing.func, thing.args, thing.keywords))
        elif isinstance(thing, dict | list | tuple | set | deque):
            if len(thing) <= MOST_ITEMS:
                yield from self._of_container(name, thing)
        elif isinstance(thing, type):
            if is_users(thing):
                yield from ((f"{name}.{key}", one) for key, one in vars(thing).items() if key != "__dict__")
        elif isinstance(thing, _BatchNorm):  # eval mode here; without running statistics it is given fixed ones
            yield from ((name, one) for one in thing.parameters(recurse=False))
        elif isinstance(thing, nn.Module) or is_users(type(thing)):
            yield from ((name, kind) for kind in type(thing).__mro__[:-1])
            if hasattr(thing, "__dict__"):
                yield from self._of_container(name, vars(thing))

    def _of_container(self, name: str, items: Any) -> Iterator[tuple[str, Any]]:
        """A dict, attributes, a list, a tuple, a deque or a set."""
        keyed = isinstance(items, dict)
        if not isinstance(items, tuple):
            read = items.copy if keyed else lambda: dict(enumerate(items))
            self._places.append(_Place(name, read, functools.partial(_refill, items), keyed))
        for key, value in items.items() if keyed else enumerate(items):
            if key in TABLES and isinstance(value, dict):
                yield from self._of_container(name, value)
            else:
                yield _join(name, key) if keyed else f"{name}[{key}]", value

    def _of_function(self, name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """What it holds, and the variables that it shares with the function or the module around it."""
        yield from ((name, function.__defaults__), (name, function.__kwdefaults__))
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not yet bound
                yield variable, cell.cell_contents
                at = cell, "cell_contents"
                self._share(variable, functools.partial(getattr, *at), functools.partial(setattr, *at))
        for variable, namespace, key in globals_of(function):
            yield variable, namespace[key]
            self._share(variable, functools.partial(namespace.get, key), functools.partial(namespace.__setitem__, key))

    def _share(self, name: str, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._places.append(_Place("", lambda: {name: read()}, lambda before: write(before[name])))


def _refill(container: Any, before: dict[Any, Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        container.update(before)
    else:
        (container.update if isinstance(container, set) else container.extend)(before.values())


def _join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def globals_of(function: types.FunctionType) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The globals that a function names, as (name, namespace, key); of the user's modules, the attributes it names."""
    names = set(_names_in(function.__code__))
    for variable in sorted(names & function.__globals__.keys()):
        value = function.__globals__[variable]
        if isinstance(value, types.ModuleType) and is_users(value):
            yield from ((f"{variable}.{key}", vars(value), key) for key in sorted(names & vars(value).keys()))
        else:
            yield variable, function.__globals__, variable


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The global names and attributes that code uses, that of functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _memory(tensor: Tensor) -> int:
    """Which memory a tensor lies in."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, or a tensor without memory of its own
        return -id(tensor)


def seed_generator(generator: Any, seed: int) -> None:
    """Let a generator of any of the known kinds begin anew from `seed`."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


def state_of(generator: Any) -> Any:
    """Where a generator stands: to be compared, and for `set_state`."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    """Put a generator where `state_of` found it."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        (generator.setstate if isinstance(generator, random.Random) else generator.set_state)(state)
