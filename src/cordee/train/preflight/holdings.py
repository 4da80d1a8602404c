"""What the user's functions and models hold: generators, tensors, and state that a pass may change.

A pass of the preflight must leave no trace. What can be reached from the objective and the models (attributes,
closures, globals that the code names) is remembered and put back; tensors are copied only when a pass writes to them.
Installed packages are not walked through, except for the modules of a model.
"""

from __future__ import annotations

import functools
import random
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cordee.train.place import is_users

MOST_ITEMS = 1_000
"""A container with more items is data, not state."""
MOST_OBJECTS = 50_000
SMALL_BYTES = 1_000_000
"""An array of NumPy's up to this size is copied before every pass; torch says when it writes, NumPy does not."""

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class Holdings:
    """Everything within reach of some roots, walked through once."""

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        """Walk from these named objects."""
        self.generators: list[Any] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self._places: list[_Place] = []
        self._seen: dict[int, Any] = {}  # by id, with the object, so that no id is used twice
        ahead = list(roots)[::-1]
        while ahead and len(self._seen) < MOST_OBJECTS:
            name, found = ahead.pop()
            if id(found) not in self._seen and not isinstance(found, _PLAIN):
                self._seen[id(found)] = found
                ahead += list(self._inside(name, found))[::-1]
        self._kept: list[Any] = []

    def remember(self) -> None:
        """Take the present state for the one to come back to."""
        self._kept = [place.keep() for place in self._places]

    def bring_back(self) -> None:
        """Put back what was changed since `remember`; contents of tensors are another's affair."""
        for place, kept in zip(self._places, self._kept, strict=True):
            if place.changed(kept):
                place.put_back(kept)

    def changed(self) -> list[str]:
        """The names of what was changed since `remember`."""
        pairs = zip(self._places, self._kept, strict=True)
        return [name for place, kept in pairs if place.changed(kept) for name in place.names(kept)]

    def _inside(self, name: str, found: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(found, Tensor):
            self.tensors.append((name, found))
        elif isinstance(found, np.ndarray):
            if found.nbytes <= SMALL_BYTES and found.flags.writeable:
                self._places.append(_Array(name, found))
        elif isinstance(found, _GENERATORS):
            self.generators.append(found)
        elif isinstance(found, types.FunctionType):
            yield from self._of_function(name, found)
        elif isinstance(found, types.MethodType):
            yield from ((name, found.__func__), (_stem(name), found.__self__))
        elif isinstance(found, functools.partial):
            yield from ((name, part) for part in (found.func, found.args, found.keywords))
        elif isinstance(found, list | tuple | dict | set | deque):
            yield from self._of_container(name, found)
        elif isinstance(found, type):
            if is_users(found):
                yield from ((f"{name}.{key}", one) for key, one in vars(found).items() if key != "__dict__")
        elif isinstance(found, _BatchNorm):  # eval mode here; without running statistics it is given fixed ones
            yield from ((name, one) for one in found.parameters(recurse=False))
        elif isinstance(found, nn.Module) or is_users(type(found)):
            yield from ((name, kind) for kind in type(found).__mro__[:-1])
            attributes = getattr(found, "__dict__", None)
            if attributes is not None:
                self._places.append(_Dict(name, attributes))
                yield from _named(name, attributes)

    def _of_function(self, name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        if not is_users(function):
            return
        yield name, function.__defaults__ or ()
        yield name, function.__kwdefaults__ or {}
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._places.append(_Cell(variable, cell))
            if (content := _content(cell)) is not _EMPTY:
                yield variable, content
        names = set(names_in(function.__code__))
        for variable in sorted(names & function.__globals__.keys()):
            value = function.__globals__[variable]
            if isinstance(value, types.ModuleType):
                if is_users(value):
                    yield from ((f"{variable}.{key}", one) for key, one in vars(value).items() if key in names)
                continue
            self._places.append(_Global(variable, function.__globals__))
            yield variable, value

    def _of_container(self, name: str, found: Any) -> Iterator[tuple[str, Any]]:
        if len(found) > MOST_ITEMS:
            return
        if isinstance(found, dict):
            self._places.append(_Dict(name, found))
            yield from _named(name, found)
            return
        if not isinstance(found, tuple):
            self._places.append(_Items(name, found))
        yield from ((f"{name}[{place}]", one) for place, one in enumerate(found))


_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device, types.BuiltinFunctionType)
_EMPTY = object()


def names_in(code: types.CodeType) -> Iterator[str]:
    """The global names and attributes that code uses, that of functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


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
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()


def set_state(generator: Any, state: Any) -> None:
    """Put a generator where `state_of` found it."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _named(name: str, items: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in items.items():
        if key in ("_modules", "_buffers", "_parameters"):  # their keys follow the name of the module itself
            yield name, value
        else:
            yield f"{name}.{key}" if name else str(key), value


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet bound
        return _EMPTY


class _Place:
    """Something that holds values, and how to put back what it held."""

    def __init__(self, name: str, holder: Any) -> None:
        self.name, self.holder = name, holder

    def keep(self) -> Any:
        raise NotImplementedError

    def changed(self, kept: Any) -> bool:
        raise NotImplementedError

    def put_back(self, kept: Any) -> None:
        raise NotImplementedError

    def names(self, kept: Any) -> list[str]:
        """What to call that which was changed."""
        return [self.name]


class _Dict(_Place):
    """Attributes, or a dict."""

    def keep(self) -> Any:
        return dict(self.holder)

    def changed(self, kept: Any) -> bool:
        held = self.holder
        return len(held) != len(kept) or any(held.get(key, _EMPTY) is not value for key, value in kept.items())

    def put_back(self, kept: Any) -> None:
        self.holder.clear()
        self.holder.update(kept)

    def names(self, kept: Any) -> list[str]:
        both = {**kept, **self.holder}
        changed = [key for key in both if kept.get(key, _EMPTY) is not self.holder.get(key, _EMPTY)]
        return [f"{self.name}.{key}" if self.name else str(key) for key in changed]


class _Items(_Place):
    """A list, a deque or a set."""

    def keep(self) -> Any:
        return list(self.holder)

    def changed(self, kept: Any) -> bool:
        return len(self.holder) != len(kept) or any(
            one is not other for one, other in zip(self.holder, kept, strict=True)
        )

    def put_back(self, kept: Any) -> None:
        self.holder.clear()
        (self.holder.update if isinstance(self.holder, set) else self.holder.extend)(kept)


class _Array(_Place):
    """A small array of NumPy's."""

    def keep(self) -> Any:
        return self.holder.copy()

    def changed(self, kept: Any) -> bool:
        return bool(self.holder.tobytes() != kept.tobytes())

    def put_back(self, kept: Any) -> None:
        self.holder[...] = kept


class _Cell(_Place):
    """A variable that a function shares with the one around it."""

    def keep(self) -> Any:
        return _content(self.holder)

    def changed(self, kept: Any) -> bool:
        return _content(self.holder) is not kept

    def put_back(self, kept: Any) -> None:
        if kept is _EMPTY:
            del self.holder.cell_contents
        else:
            self.holder.cell_contents = kept


class _Global(_Place):
    """A global variable of a module."""

    def keep(self) -> Any:
        return self.holder.get(self.name, _EMPTY)

    def changed(self, kept: Any) -> bool:
        return self.holder.get(self.name, _EMPTY) is not kept

    def put_back(self, kept: Any) -> None:
        if kept is _EMPTY:
            self.holder.pop(self.name, None)
        else:
            self.holder[self.name] = kept


class CopyOnWrite:
    """Contents of tensors, copied when an operator is about to write to them."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Watch the memory of these."""
        self._watched: dict[int, list[tuple[str, Tensor]]] = {}
        for name, tensor in tensors:
            self._watched.setdefault(_memory(tensor), []).append((name, tensor))
        self._copies: dict[int, list[Tensor]] = {}

    def before_write(self, tensor: Tensor) -> None:
        """Call this with what an operator writes to."""
        place = _memory(tensor)
        if place in self._watched and place not in self._copies:
            with torch.no_grad():
                self._copies[place] = [one.detach().clone() for _, one in self._watched[place]]

    def written(self) -> list[str]:
        """The names of tensors that now hold something else."""
        return [
            name
            for place, copies in self._copies.items()
            for (name, tensor), copy in zip(self._watched[place], copies, strict=True)
            if not torch.equal(tensor.detach(), copy)
        ]

    @torch.no_grad()
    def bring_back(self, names: Collection[str] | None = None) -> None:
        """Undo what was written, to all tensors or to those of these names."""
        for place, copies in self._copies.items():
            for (name, tensor), copy in zip(self._watched[place], copies, strict=True):
                if names is None or name in names:
                    tensor.data.copy_(copy)
        if names is None:
            self._copies.clear()


def _memory(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, or a tensor without memory of its own
        return -id(tensor)
