"""Files that are not what was written, by accident or on purpose: what their content leads to is one clear error."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from cordee.core.errors import CordeeError, StorageError

DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # also of torch; a structure that is nested too deeply
    StopIteration,
    TypeError,
    ValueError,
)
"""What wrong types, missing keys, huge numbers and deep nesting lead to."""


@contextlib.contextmanager
def named(make: Callable[[str], CordeeError]) -> Iterator[None]:
    """Raise what `make` gives for a reason, in place of whatever the content of a file leads to in here."""
    try:
        yield
    except DAMAGE as problem:
        reason = " ".join(str(problem).split())[:200]
        raise make(f"{type(problem).__name__}: {reason}" if reason else type(problem).__name__) from problem


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise one clear error if `path` cannot be written in here."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path.absolute()}: {error.strerror}") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file: another process reads the old one or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object in a file; empty if there is none, or not all of one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, ValueError, RecursionError):
        return {}
