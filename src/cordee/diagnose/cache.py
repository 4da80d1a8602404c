"""What was found out once, in the user's cache folder. A damaged, missing or read-only cache costs time, no more."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cordee.core.damage import write_whole

Kind = TypeVar("Kind")


def recall(name: str, kind: type[Kind]) -> Kind | None:
    """The value that was stored under this name; None if there is none, or it is not of this kind."""
    try:
        return msgspec.json.decode(_path(name).read_bytes(), type=kind)
    except (OSError, RuntimeError, ValueError):  # RuntimeError: a user without a home
        return None


def store(name: str, value: Any) -> None:
    """Write a value as JSON, if the folder can be written."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(value).decode())


def _path(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cordee" / f"{name}.json"
