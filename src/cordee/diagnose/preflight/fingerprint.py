"""A fingerprint of functions and models: everything that decides what they compute, or none at all.

Code counts by its bytecode, with the values of its closures and of the globals that it names; installed packages by
their version; parameters of models by shape and type. Where something is met that this cannot tell of (a file that is
read, an object of another package), there is no fingerprint, and nothing is remembered.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cordee.diagnose.place import is_users
from cordee.diagnose.preflight.holdings import GENERATORS, globals_of

MOST_BYTES = 64_000_000
"""Of a tensor or an array whose content counts."""
MOST_ITEMS = 100_000
_VALUES = (str, bytes, bool, int, float, complex, type(None), type(...), torch.dtype, torch.device, enum.Enum, PurePath)
_ELSEWHERE = frozenset(
    ("eval", "exec", "globals", "locals", "__import__", "open", "environ", "getenv", "import_module")
)
"""Names whose use makes code depend on what cannot be seen here."""


class _Unknown(Exception):
    """Something that cannot be told of."""


def fingerprint(things: Iterable[Any]) -> str | None:
    """Of all of these together; None if there is none that can be relied on."""
    walk = _Walk()
    try:
        for thing in things:
            walk.enter(thing)
    except (_Unknown, RecursionError):
        return None
    return walk.digest.hexdigest()


class _Walk:
    """Goes through objects and everything that they are made of, each once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}

    def enter(self, thing: Any) -> None:
        if isinstance(thing, _VALUES):
            self._write(f"{type(thing).__name__} {thing!r}")
        elif id(thing) in self._seen:
            self._write(f"again {self._seen[id(thing)][0]}")
        else:
            self._seen[id(thing)] = (len(self._seen), thing)
            self._write(type(thing).__qualname__)
            for part in self._parts(thing):
                self.enter(part)

    def _write(self, text: str) -> None:
        raw = text.encode()
        self.digest.update(len(raw).to_bytes(8, "little") + raw)

    def _parts(self, thing: Any) -> Iterator[Any]:
        if isinstance(thing, Tensor | np.ndarray):
            yield from _of_array(thing)
        elif isinstance(thing, GENERATORS):
            yield type(thing).__name__  # seeded anew for every pass
        elif isinstance(thing, types.FunctionType):
            yield from _of_function(thing) if is_users(thing) else _installed(thing)
        elif isinstance(thing, types.MethodType):
            yield from (thing.__func__, thing.__self__)
        elif isinstance(thing, functools.partial):
            yield from (thing.func, thing.args, thing.keywords)
        elif isinstance(thing, dict):
            yield from (part for pair in _few(thing.items()) for part in pair)
        elif isinstance(thing, list | tuple | deque):
            yield from _few(thing)
        elif isinstance(thing, set | frozenset):
            yield from sorted(map(repr, _few(thing)))
        elif isinstance(thing, type):
            yield from _of_class(thing) if is_users(thing) else _installed(thing)
        elif isinstance(thing, types.BuiltinFunctionType) and isinstance(thing.__self__, types.ModuleType | type(None)):
            yield from _installed(thing)
        elif isinstance(thing, types.ModuleType) and not is_users(thing):
            yield from (thing.__name__, _version(thing.__name__))
        elif isinstance(thing, staticmethod | classmethod):
            yield thing.__func__
        elif isinstance(thing, property):
            yield from (thing.fget, thing.fset)
        elif isinstance(thing, nn.Module) or _has_plain_attributes(type(thing)):
            yield from (type(thing), {key: one for key, one in vars(thing).items() if key not in _UNTOLD})
        else:
            raise _Unknown


_UNTOLD = ("training", "_is_full_backward_hook", "_compiled_call_impl")


def _few(items: Any) -> Any:
    if len(items) > MOST_ITEMS:
        raise _Unknown
    return items


def _of_array(thing: Any) -> Iterator[Any]:
    yield from (str(tuple(thing.shape)), str(thing.dtype))
    if isinstance(thing, nn.Parameter):
        yield thing.requires_grad
        return
    if thing.nbytes > MOST_BYTES or (isinstance(thing, Tensor) and thing.layout != torch.strided):
        raise _Unknown
    if isinstance(thing, Tensor):
        flat = thing.detach().cpu().contiguous().reshape(-1)
        yield hashlib.sha256(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"").digest()
    elif thing.dtype.kind == "O":
        raise _Unknown
    else:
        yield hashlib.sha256(np.ascontiguousarray(thing).tobytes()).digest()


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    yield from _of_code(function.__code__)
    yield from (function.__defaults__, function.__kwdefaults__, function.__dict__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            raise _Unknown from None
    for name, namespace, key in globals_of(function):
        yield from (name, namespace[key])


def _of_code(code: types.CodeType) -> Iterator[Any]:
    if _ELSEWHERE & set(code.co_names):
        raise _Unknown
    yield from (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _of_code(constant)
        else:
            yield constant
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module = sys.modules.get(step.argval)
            if module is None or is_users(module):
                raise _Unknown
            yield from (step.argval, _version(step.argval))


def _of_class(kind: type) -> Iterator[Any]:
    yield kind.__qualname__
    yield from kind.__bases__
    for name, value in sorted(vars(kind).items()):
        if name not in ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"):
            yield from (name, value)


def _has_plain_attributes(kind: type) -> bool:
    """Whether an instance is its attributes: of the user's classes and of ours."""
    ours = kind.__module__.startswith("cordee.")
    return (ours or is_users(kind)) and not any("__slots__" in vars(one) for one in kind.__mro__[:-1])


def _installed(thing: Any) -> Iterator[Any]:
    module = getattr(thing, "__module__", None) or ""
    yield from (module, getattr(thing, "__qualname__", ""), _version(module))


def _version(module: str) -> str:
    """Of the package that a module belongs to; Python's own and torch's are told elsewhere."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("", "builtins", "torch", "cordee"):
        return ""
    version = getattr(sys.modules.get(top), "__version__", None)
    if not isinstance(version, str):
        raise _Unknown
    return version
