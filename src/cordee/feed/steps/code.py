"""The user's functions as text, for keys of caches: what they consist of, not where they lie in memory."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import random
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from cordee.core.text import plain

_DEPTH = 100
_NO_CODE = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__", "_abc_impl"}
_NO_CODE |= {"__static_attributes__", "__slotnames__"}
_PLAIN = (bool, int, float, complex, str, bytes, PurePath, range)
_WRITING = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "put", "update", "write"}
"""Methods through which a function leaves something behind: what they belong to decides no row."""
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
"""They decide no row."""


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

    Functions of installed packages count by their name; objects by their class and by what a copy of them is made of.
    What has no such parts, or changes when it is used, counts by its type: a line on stderr says so.
    """
    look = _Look()
    look.at(function, _DEPTH)
    if look.unseen:
        _warn(name_of(function), ", ".join(sorted(look.unseen)))
    return look.digest()


@functools.cache
def _warn(name: str, unseen: str) -> None:
    text = (
        f"{name}: it uses {unseen}, and it cannot be seen whether that has changed since rows were stored. Let it use "
        "plain values (numbers, texts, arrays; a seed, not a generator), or change the function when that has changed"
    )
    print(plain(f"cordee: {text}"), file=sys.stderr, flush=True)  # noqa: T201


class _Look:
    """One walk through all that a thing consists of, as words in order; what comes again stands by its number."""

    def __init__(self, met: Mapping[int, tuple[int, Any]] | None = None) -> None:
        self.met = dict(met or {})
        """By id: its number, and itself, so that the id stays its own."""
        self.unseen: set[str] = set()
        self._words = hashlib.sha256()

    def digest(self) -> str:
        return self._words.hexdigest()[:32]

    def word(self, text: str) -> None:
        self._words.update(len(text).to_bytes(8, "little") + text.encode("utf-8", "surrogatepass"))

    def at(self, thing: Any, depth: int) -> None:
        kind = type(thing).__qualname__
        if thing is None or isinstance(thing, _PLAIN):
            self.word(f"{type(thing).__name__} {thing!r}")
        elif (isinstance(thing, np.ndarray | np.generic) and not thing.dtype.hasobject) or is_tensor(thing):
            self.word(_of_array(thing))
        elif isinstance(thing, set | frozenset):
            self.word(f"<{kind}> {' '.join(sorted(self._apart(one, depth) for one in thing))}")
        elif id(thing) in self.met:
            self.word(f"{kind} {self.met[id(thing)][0]}")
        elif not depth or _moves(thing):
            self.word(f"<{kind}>")
            self.unseen.add(f"a {kind}" if depth else f"a {kind} inside of {_DEPTH} others")
        else:
            # Two constants that are equal may be one object or two, as Python has it.
            if not isinstance(thing, tuple | types.CodeType | types.MethodType):
                self.met[id(thing)] = len(self.met), thing
            self.word(f"<{kind}>")
            try:
                for part in _inside(thing):
                    self.at(part, depth - 1)
            except _Closed:
                self.unseen.add(f"a {kind}")
            self.word("")

    def _apart(self, thing: Any, depth: int) -> str:
        """An entry of a set, which has no order: a digest that does not depend on those before it."""
        look = _Look(self.met if not isinstance(thing, _PLAIN) else None)
        look.at(thing, max(depth - 1, 0))
        self.unseen |= look.unseen
        return look.digest()


class _Closed(Exception):
    """An object that does not show what it consists of."""


def _inside(thing: Any) -> Iterator[Any]:
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from (key, value)
    elif isinstance(thing, list | tuple):
        yield from thing
    elif isinstance(thing, np.ndarray):
        yield from (thing.shape, thing.ravel().tolist())
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
        yield from _named(thing.__globals__, set(_names_in(thing.__code__)), {id(thing.__globals__)})
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
    elif isinstance(thing, types.BuiltinMethodType) and thing.__name__ in _WRITING:
        yield from (thing.__name__, type(thing.__self__))
    elif not isinstance(thing, _LOCKS):
        yield type(thing)
        yield from _of_object(thing)


def _of_object(thing: Any) -> Iterator[Any]:
    """What `copy` would make another one of, or its attributes."""
    own = getattr(thing, "__dict__", None)
    try:
        if type(thing).__module__.startswith("tokenizers"):  # of Hugging Face, which are compiled code
            yield thing.to_str()
            return
        reduce = copyreg.dispatch_table.get(type(thing))
        made: Any = reduce(thing) if reduce else thing.__reduce_ex__(4)
    except Exception as error:  # it cannot be copied: whatever its own code raises
        if own is None:
            raise _Closed from error
        yield own
        return
    if isinstance(made, str):  # a name in its module, such as math.sqrt; a cached function has the other one beside it
        yield from (getattr(thing, "__module__", None), made, own)
        return
    for part in made:
        yield list(part) if isinstance(part, Iterator) else part


def _moves(thing: Any) -> bool:
    """Whether it is another one after it was used: generators of random numbers, iterators, open files."""
    kind = type(thing)
    return (
        isinstance(thing, Iterator | random.Random)
        or kind.__module__.startswith("numpy.random")
        or (kind.__module__, kind.__name__) == ("torch._C", "Generator")
    )


def _named(space: Mapping[str, Any], names: set[str], seen: set[int]) -> Iterator[Any]:
    """What code means by these names; of the user's modules, what it may use of them."""
    for name in sorted(names & space.keys()):
        value = space[name]
        yield from (name, value)
        if isinstance(value, types.ModuleType) and id(vars(value)) not in seen and _own(value, value.__name__):
            seen.add(id(vars(value)))
            yield from _named(vars(value), names, seen)


def is_users(thing: Any) -> bool:
    """Whether code is the user's own, and not of an installed package or of Python's library."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or getattr(module, "__file__", None) is None:
        return getattr(thing, "__module__", None) not in ("builtins", *sys.builtin_module_names)
    return _own(module, thing.__module__)


def _own(module: types.ModuleType, name: str) -> bool:
    """Whether the file of a module is the user's."""
    import sysconfig

    file = getattr(module, "__file__", None)
    if file is None or name.partition(".")[0] == "cordee":
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
    else:
        raw = np.ascontiguousarray(array).tobytes()
    return f"{words} {hashlib.sha256(raw).hexdigest()}"
