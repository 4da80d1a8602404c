"""The user's functions as text, for keys of caches: what they consist of, not where they lie in memory."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

_DEPTH = 12
_NO_CODE = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"}
_NO_CODE.add("__static_attributes__")


def is_tensor(value: Any) -> bool:
    """Whether it is one of torch's; processes that have not imported it have none, and need not do so."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def name_of(function: Any) -> str:
    """What a function is called: by this name it is given again when saved steps are read."""
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", None) or type(inner).__name__)


def code_of(function: Any) -> str:
    """A digest that changes when the function does: its bytecode, constants, defaults, and the values that it names.

    Functions of installed packages count by their name; what cannot be looked into, by its type.
    """
    whole = hashlib.sha256()
    for part in _parts(function, _DEPTH, set()):
        whole.update(len(part).to_bytes(8, "little") + part.encode("utf-8", "surrogatepass"))
    return whole.hexdigest()[:32]


def _parts(thing: Any, depth: int, seen: set[int]) -> Iterator[str]:
    if thing is None or isinstance(thing, bool | int | float | complex | str | bytes | PurePath | range):
        yield f"{type(thing).__name__} {thing!r}"
    elif isinstance(thing, np.ndarray | np.generic) or is_tensor(thing):
        yield _of_array(thing)
    elif id(thing) in seen or not depth:  # a circle, or too deep
        yield f"{type(thing).__qualname__}"
    else:
        seen = seen | {id(thing)}
        for part in _inside(thing):
            if isinstance(part, _Word):
                yield part.text
            else:
                yield from _parts(part, depth - 1, seen)


class _Word:
    def __init__(self, text: str) -> None:
        self.text = text


def _inside(thing: Any) -> Iterator[Any]:
    yield _Word(f"<{type(thing).__qualname__}>")
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from (key, value)
    elif isinstance(thing, set | frozenset):
        yield from sorted(map(repr, thing))
    elif isinstance(thing, list | tuple):
        yield from thing
    elif isinstance(thing, types.CodeType):
        yield from (thing.co_code.hex(), *thing.co_names, *thing.co_varnames, *thing.co_freevars, thing.co_flags)
        yield from thing.co_consts
    elif isinstance(thing, types.ModuleType):
        yield thing.__name__
    elif isinstance(thing, types.FunctionType | type) and not is_users(thing):
        yield f"{thing.__module__}.{thing.__qualname__}"
    elif isinstance(thing, types.FunctionType):
        cells = [_content(cell) for cell in thing.__closure__ or ()]
        yield from (thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells)
        names = set(_names_in(thing.__code__))
        for name in sorted(names & thing.__globals__.keys()):
            yield from (name, thing.__globals__[name])
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, dict(sorted(thing.keywords.items())))
    elif isinstance(thing, staticmethod | classmethod):
        yield thing.__func__
    elif isinstance(thing, property):
        yield from (thing.fget, thing.fset)
    elif isinstance(thing, type):
        yield from (thing.__qualname__, list(thing.__bases__))
        yield {name: value for name, value in sorted(vars(thing).items()) if name not in _NO_CODE}
    else:
        yield type(thing)
        whole = getattr(thing, "to_str", None)  # tokenizers of Hugging Face, which are compiled code
        try:
            yield whole() if callable(whole) else vars(thing)
        except TypeError:  # it has no attributes of its own
            return


def is_users(thing: Any) -> bool:
    """Whether code is the user's own, and not of an installed package or of Python's library."""
    import sysconfig

    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return getattr(thing, "__module__", None) not in ("builtins", *sys.builtin_module_names)
    if thing.__module__.partition(".")[0] == "cordee":
        return False
    return "-packages" not in file and not file.startswith(sysconfig.get_path("stdlib"))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet bound
        return None


def _of_array(value: Any) -> str:
    array: Any = value.detach().cpu().contiguous() if is_tensor(value) else np.asarray(value)
    words = f"{tuple(array.shape)} {array.dtype}"
    if is_tensor(array):
        raw = array.reshape(-1).view(sys.modules["torch"].uint8).numpy().tobytes() if array.numel() else b""
    elif array.dtype.kind == "O":
        raw = repr(array.tolist()).encode()
    else:
        raw = np.ascontiguousarray(array).tobytes()
    return f"{words} {hashlib.sha256(raw).hexdigest()}"
