"""Verdicts of former starts, in the user's cache folder: an unchanged job is not checked again.

Only that an objective was accepted without a warning is remembered, under a fingerprint of everything that decides what
it computes. Code counts by its bytecode, with the values of its closures and of the globals that it names; installed
packages by their version; parameters of models by shape and type. Where something is met that this cannot describe (a
file that is read, an object of another package), there is no fingerprint, and nothing is remembered.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import json
import platform
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cordee import __version__
from cordee.diagnose import cache
from cordee.diagnose.misfit import is_users
from cordee.diagnose.preflight.holdings import GENERATORS, globals_of
from cordee.group.team import Team

KIND = "1"
"""Counted up when the tests change, so that what was judged otherwise is forgotten."""
FILE = "preflight"
MOST_KEPT = 500
MOST_BYTES = 64_000_000
"""Of a tensor or an array whose content counts."""
MOST_ITEMS = 100_000
_VALUES = (str, bytes, bool, int, float, complex, type(None), type(...), torch.dtype, torch.device, enum.Enum, PurePath)
_ELSEWHERE = {"eval", "exec", "globals", "locals", "__import__", "open", "environ", "getenv", "import_module"}
"""Names whose use makes code depend on what cannot be seen here."""
_NO_CODE = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"}
_NO_STATE = {"training", "_is_full_backward_hook", "_compiled_call_impl"}


def make_key(parts: Iterable[str]) -> str:
    """One key made of these, and of all else that a verdict depends on."""
    versions = [KIND, __version__, str(torch.__version__), platform.python_version()]
    return hashlib.sha256(json.dumps([*versions, *parts]).encode()).hexdigest()


def is_remembered(key: str | None, team: Team) -> bool:
    """Whether all workers remember that this was accepted; every one of them calls this."""
    known = key is not None and key in _keys()
    while True:
        votes = torch.tensor([float(known), 1.0])
        if team.agree([votes]):
            return float(votes[0]) == float(votes[1])


def remember(key: str | None) -> None:
    """Remember it, if the folder can be written."""
    if key is not None:
        cache.store(FILE, [*(one for one in _keys() if one != key), key][-MOST_KEPT:])


def _keys() -> list[str]:
    return cache.recall(FILE, list[str]) or []


class _Unknown(Exception):
    """Something that a fingerprint cannot describe."""


def fingerprint(things: Iterable[Any]) -> str | None:
    """Of all of these together; None if there is none that can be relied on."""
    digest = hashlib.sha256()
    seen: dict[int, tuple[int, Any]] = {}  # by id, with the object, so that no id is used twice

    def enter(thing: Any) -> None:
        is_new = not isinstance(thing, _VALUES) and id(thing) not in seen
        if isinstance(thing, _VALUES):
            raw = f"{type(thing).__name__} {thing!r}".encode()
        else:
            number, _ = seen.setdefault(id(thing), (len(seen), thing))
            raw = (type(thing).__qualname__ if is_new else f"again {number}").encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
        if is_new:
            for part in _parts(thing):
                enter(part)

    try:
        for thing in things:
            enter(thing)
    except (_Unknown, RecursionError):
        return None
    return digest.hexdigest()


def _parts(thing: Any) -> Iterator[Any]:
    """What an object is made of."""
    if isinstance(thing, GENERATORS):  # seeded anew for every pass
        return
    if isinstance(thing, Tensor | np.ndarray):
        yield from _of_array(thing)
    elif isinstance(thing, types.FunctionType | type) and not is_users(thing):
        yield from _of_installed(thing)
    elif isinstance(thing, types.FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, type):
        code = {name: value for name, value in sorted(vars(thing).items()) if name not in _NO_CODE}
        yield from (thing.__qualname__, thing.__bases__, code)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, dict | list | tuple | deque | set | frozenset):
        if len(thing) > MOST_ITEMS:
            raise _Unknown
        items = thing.items() if isinstance(thing, dict) else thing
        yield from sorted(map(repr, items)) if isinstance(thing, set | frozenset) else items
    elif isinstance(thing, types.BuiltinFunctionType) and isinstance(thing.__self__, types.ModuleType | type(None)):
        yield from _of_installed(thing)
    elif isinstance(thing, types.ModuleType) and not is_users(thing):
        yield from (thing.__name__, _version(thing.__name__))
    elif isinstance(thing, staticmethod | classmethod):
        yield thing.__func__
    elif isinstance(thing, property):
        yield from (thing.fget, thing.fset)
    elif isinstance(thing, nn.Module) or _is_its_attributes(type(thing)):
        yield from (type(thing), {key: one for key, one in vars(thing).items() if key not in _NO_STATE})
    else:
        raise _Unknown


def _of_array(array: Any) -> Iterator[Any]:
    yield from (str(tuple(array.shape)), str(array.dtype))
    if isinstance(array, nn.Parameter):
        yield array.requires_grad
        return
    is_tensor = isinstance(array, Tensor)
    if array.nbytes > MOST_BYTES or (array.layout != torch.strided if is_tensor else array.dtype.hasobject):
        raise _Unknown
    if is_tensor:
        flat = array.detach().cpu().contiguous().reshape(-1)
        array = flat.view(torch.uint8).numpy() if flat.numel() else ()
    yield hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


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
    if not _ELSEWHERE.isdisjoint(code.co_names):
        raise _Unknown
    yield from (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
    for constant in code.co_consts:
        yield from _of_code(constant) if isinstance(constant, types.CodeType) else (constant,)
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module = sys.modules.get(step.argval)
            if module is None or is_users(module):
                raise _Unknown
            yield from (step.argval, _version(step.argval))


def _of_installed(thing: Any) -> Iterator[Any]:
    module = getattr(thing, "__module__", None) or ""
    yield from (module, getattr(thing, "__qualname__", ""), _version(module))


def _is_its_attributes(kind: type) -> bool:
    """Whether attributes are all that an instance is: of the user's classes and of ours."""
    ours = kind.__module__.startswith("cordee.")
    return (ours or is_users(kind)) and not any("__slots__" in vars(one) for one in kind.__mro__[:-1])


def _version(module: str) -> str:
    """Of the package that a module belongs to; those of Python, torch and Cordée are in the key anyway."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("", "builtins", "torch", "cordee"):
        return ""
    version = getattr(sys.modules.get(top), "__version__", None)
    if not isinstance(version, str):
        raise _Unknown
    return version
