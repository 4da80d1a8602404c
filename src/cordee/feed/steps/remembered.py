"""Fitted steps and columns of files in the cache: what was found out about the same rows once is not gathered again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cordee.core import interrupts
from cordee.core.damage import write_whole
from cordee.core.errors import DataError, WaitedTooLong
from cordee.core.locks import take_lock
from cordee.feed.columns import Schema
from cordee.feed.steps.seam import Step
from cordee.feed.steps.user import Function
from cordee.feed.steps.written import KINDS, read_steps
from cordee.feed.store.cached import cache_folder

DEADLINE_S = 3600.0
"""How long a process waits until another one of this host has gathered the same statistics."""
FORM = "3"
"""Counted up when steps are fitted otherwise."""
_LOOK_S = 0.05
MOST = 1000
"""So many are kept, those that were used last."""


def remembered(parts: Iterable[str], steps: Sequence[Any], make: Callable[[], tuple[Step, ...]]) -> tuple[Step, ...]:
    """The fitted steps that belong to these parts of a key and to `steps`, or what `make` finds; one process makes."""
    functions = [step.function.call for step in steps if isinstance(getattr(step, "function", None), Function)]
    if not all(isinstance(one, KINDS) for one in steps):  # a step of the user's own make is not written
        return make()
    path = _path([*parts, *(one.key for one in steps)])
    if (found := _read(path, functions)) is not None:
        return found
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        return make()
    deadline, lock_path = time.monotonic() + DEADLINE_S, path.with_suffix(".lock")
    while (lock := take_lock(lock_path)) is None:
        interrupts.check()
        if time.monotonic() > deadline:
            raise WaitedTooLong(
                f"another process has gathered statistics of the same data for {DEADLINE_S:g} s and holds {lock_path}: "
                "end it, which lets this one do so"
            )
        time.sleep(_LOOK_S)
    try:
        if (found := _read(path, functions)) is not None:
            return found
        made = make()
        with contextlib.suppress(OSError):
            write_whole(path, _write(made, functions))
            _forget(path.parent)
        return made
    finally:
        with contextlib.suppress(OSError):
            lock_path.unlink()
        os.close(lock)


def remembered_schema(parts: Iterable[str], make: Callable[[], Schema]) -> Schema:
    """The columns of the files that these parts of a key stand for: looked for in them once, then kept."""
    path = _path(["columns", *parts])
    with contextlib.suppress(OSError, msgspec.MsgspecError):  # not there, or damaged
        found = msgspec.json.decode(path.read_bytes(), type=Schema)
        _mark_as_used(path)
        return found
    made = make()
    with contextlib.suppress(OSError, UnicodeError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(made).decode())
        _forget(path.parent)
    return made


def _path(parts: Iterable[str]) -> Path:
    digest = hashlib.sha256("\0".join([FORM, *parts]).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return cache_folder() / "fitted" / f"{digest}.json"


def _mark_as_used(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(path)


def _forget(folder: Path) -> None:
    """Remove those that were not used for longest."""
    used = sorted((one.stat().st_mtime_ns, one) for one in folder.glob("*.json"))
    for _, one in used[: max(0, len(used) - MOST)]:
        one.unlink(missing_ok=True)


def _write(steps: tuple[Step, ...], functions: list[Any]) -> str:
    """As JSON; functions by their place in the chain, as two may have one name."""
    places = {id(function): str(place) for place, function in reversed(list(enumerate(functions)))}
    return msgspec.json.encode(steps, enc_hook=lambda held: places[id(held.call)]).decode()


def _read(path: Path, functions: list[Any]) -> tuple[Step, ...] | None:
    try:
        raw = msgspec.json.decode(path.read_bytes())
        _mark_as_used(path)
        return read_steps(raw, {str(place): function for place, function in enumerate(functions)})
    except (OSError, msgspec.MsgspecError, DataError):  # not there, or damaged: then it is made anew
        return None
