"""Verdicts of former starts, in the user's cache folder: an unchanged job is not checked again.

Only that an objective was accepted without a warning, and gathers nothing, is remembered, under a fingerprint of
everything that decides what it computes. Code counts by its bytecode, with the values of its closures and of the
globals that it names; parameters of models by shape and type; installed packages by name, and by when one was last
installed. What pickle cannot describe (an open file), and code that reaches further (imports, files, variables of the
environment), has no fingerprint.
"""

from __future__ import annotations

import dis
import hashlib
import io
import json
import os
import pickle
import platform
import sys
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cordee import __version__
from cordee.diagnose import cache
from cordee.diagnose.misfit import is_users
from cordee.diagnose.preflight.holdings import GENERATORS, globals_of
from cordee.group.team import Team

KIND = "3"
"""Counted up when the tests change, so that what was judged otherwise is forgotten."""
FILE = "preflight"
MOST_KEPT = 500
MOST_BYTES = 64_000_000
"""Of all values that count, and of a tensor or an array among them."""
_ELSEWHERE = {"eval", "exec", "globals", "locals", "__import__", "open", "environ", "getenv", "import_module"}
"""Names whose use makes code depend on what cannot be seen here."""
_NO_CODE = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"}
_NO_CODE.add("__static_attributes__")  # in any order


def make_key(parts: Iterable[str]) -> str:
    """One key made of these, and of all else that a verdict depends on."""
    installed = [os.stat(one).st_mtime_ns for one in sys.path if one.endswith("-packages") and os.path.isdir(one)]
    versions = [KIND, __version__, str(torch.__version__), platform.python_version(), *installed]
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


def fingerprint(things: Iterable[Any]) -> str | None:
    """Of all of these together; None if there is none that can be relied on."""
    stream = _Stream()
    try:
        _Describer(stream, protocol=5).dump(list(things))
    except Exception:  # pickle, and the user's own __reduce__, fail in many ways
        return None
    return hashlib.sha256(stream.getbuffer()).hexdigest()


class _Stream(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() > MOST_BYTES:
            raise pickle.PicklingError("too much")
        return super().write(data)


class _Describer(pickle.Pickler):
    """Pickles what pickle would only name: the user's own code, by what it consists of.

    A description is (str, name, parts): the object is known before its parts are visited, so that they may hold it.
    """

    def reducer_override(self, thing: Any) -> Any:
        if thing is str:
            return NotImplemented
        if isinstance(thing, GENERATORS):  # seeded anew for every pass
            return str, ()
        if isinstance(thing, nn.Parameter):
            return str, (f"{tuple(thing.shape)} {thing.dtype} {thing.requires_grad}",)
        if isinstance(thing, Tensor | np.ndarray) and thing.nbytes > MOST_BYTES:
            raise pickle.PicklingError("too much")
        if isinstance(thing, Tensor):
            flat = thing.detach().cpu().contiguous().reshape(-1)
            return str, (f"{tuple(thing.shape)} {thing.dtype}",), flat.view(torch.uint8).numpy() if len(flat) else ()
        if isinstance(thing, types.CodeType):
            return str, ("code",), _parts_of_code(thing)
        if isinstance(thing, types.FunctionType | type | types.ModuleType) and not is_users(thing):
            return str, (f"{getattr(thing, '__module__', '')} {getattr(thing, '__qualname__', thing.__name__)}",)
        if isinstance(thing, types.FunctionType):
            values = [cell.cell_contents for cell in thing.__closure__ or ()]
            named = [(name, namespace[key]) for name, namespace, key in globals_of(thing)]
            parts = [thing.__code__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__, values, named]
            return str, ("function",), parts
        if isinstance(thing, type):
            code = {name: value for name, value in sorted(vars(thing).items()) if name not in _NO_CODE}
            return str, (thing.__qualname__,), [thing.__bases__, code]
        if isinstance(thing, staticmethod | classmethod):
            return str, ("method",), [thing.__func__]
        if isinstance(thing, property):
            return str, ("property",), [thing.fget, thing.fset]
        return NotImplemented


def _parts_of_code(code: types.CodeType) -> list[Any]:
    if not _ELSEWHERE.isdisjoint(code.co_names) or dis.opmap["IMPORT_NAME"] in code.co_code[::2]:
        raise pickle.PicklingError("it reaches further")
    names = repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags))
    # Equal constants may or may not be one object, and sets have an order of their own: their text counts.
    plain = [one for one in code.co_consts if not isinstance(one, types.CodeType)]
    texts = [repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one) for one in plain]
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return [code.co_code, names, texts, inner]
