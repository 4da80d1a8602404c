"""Whether it can be known that rows of Python's have changed: a text that differs when they do, or advice."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset

from cordee.core.errors import DataError
from cordee.feed.dataset import content_of, has_content
from cordee.feed.source import digest_of
from cordee.feed.steps.code import code_of, is_users

_FILES = "open glob rglob iterdir listdir scandir read_text read_bytes memmap loadtxt genfromtxt"
_TABLES = "read_csv read_parquet read_json read_excel load_dataset"
_OTHERS = "connect create_engine urlopen urlretrieve requests socket environ getenv"
_OUTSIDE = frozenset(f"{_FILES} {_TABLES} {_OTHERS}".split())
"""Names whose use makes rows depend on what cannot be seen here."""
_DEPTH = 4


def version_of_factory(factory: Callable[..., Any], version: str | None) -> str:
    """What stands for the rows of a function that gives them: the user's version, or the function's own code."""
    if version is not None:
        return f"version {version}"
    own = getattr(getattr(factory, "dataset", factory), "_fingerprint", None)  # Hugging Face's datasets have one
    if isinstance(own, str):
        return own
    if outside := next(_reaching(factory, _DEPTH), None):
        raise DataError(
            f"rows({_name(factory)}): it reads something outside of itself ({outside}), so it cannot be seen whether "
            "its rows have changed since they were stored. Give them a version, and count it up when they change: "
            "rows(..., version='1')"
        )
    return code_of(factory)


def version_of_dataset(dataset: Any, version: str | None) -> str:
    """What stands for the samples of a dataset: the user's version, its own fingerprint, or what it holds."""
    if version is not None:
        return f"version {version}"
    for name in ("fingerprint", "_fingerprint"):
        if isinstance(own := getattr(dataset, name, None), str):
            return own
    if not has_content(dataset):
        raise DataError(
            f"rows({type(dataset).__name__}): it holds no array and no list of its {len(dataset)} samples, so it "
            "cannot be seen whether they have changed since they were stored. Give them a version, and count it up "
            "when they change: rows(..., version='1')"
        )
    return digest_of([f"{len(dataset)}".encode(), content_of(dataset).encode(), *_code(dataset, _DEPTH)])


def _code(dataset: Any, depth: int) -> Iterator[bytes]:
    """The code of a dataset, and what it holds beside its samples: transforms, numbers, paths."""
    yield code_of(type(dataset)).encode()
    for name, held in sorted(getattr(dataset, "__dict__", {}).items()):
        if isinstance(held, Dataset) and depth:
            yield from _code(held, depth - 1)
        elif not (hasattr(held, "__len__") and len(held) >= len(dataset)):
            yield f"{name} {code_of(held)}".encode()


def _reaching(thing: Any, depth: int) -> Iterator[str]:
    """Names in the user's code that read files, databases or the network."""
    if isinstance(thing, functools.partial):
        thing = thing.func
    if isinstance(thing, types.MethodType):
        thing = thing.__func__
    if isinstance(thing, types.CodeType):
        yield from sorted(_OUTSIDE & {*thing.co_names})
        for constant in thing.co_consts:
            if isinstance(constant, types.CodeType):
                yield from _reaching(constant, depth)
    elif isinstance(thing, types.FunctionType) and is_users(thing) and depth:
        yield from _reaching(thing.__code__, depth)
        named = [thing.__globals__.get(name) for name in thing.__code__.co_names]
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        for inner in (*named, *cells):
            if isinstance(inner, types.FunctionType | types.MethodType | type | functools.partial):
                yield from _reaching(inner, depth - 1)
    elif isinstance(thing, type) and is_users(thing) and depth:
        for value in vars(thing).values():
            if isinstance(value, types.FunctionType):
                yield from _reaching(value, depth - 1)
    elif not isinstance(thing, types.FunctionType | type) and depth:  # an object that is called, or iterated
        yield from _reaching(type(thing), depth)
        yield from _reaching(getattr(thing, "dataset", None), depth - 1) if hasattr(thing, "dataset") else ()


def _name(factory: Any) -> str:
    return str(getattr(factory, "__qualname__", None) or type(factory).__name__)
