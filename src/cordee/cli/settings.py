"""What every command that takes a job reads: its file, and `--set name=value`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cordee.core.errors import JobError, UsageError


def python_file(path: Path) -> Path:
    """The file that was named, or an error that says what is there instead."""
    if path.is_dir():
        inside = sorted(one.name for one in path.glob("*.py"))[:3]
        hint = f"; it holds {', '.join(inside)}" if inside else ""
        raise JobError(f"{path.resolve()} is a folder: expected a Python file{hint}")
    if not path.is_file():
        raise JobError(f"there is no file {path.resolve()}: expected a Python file")
    return path


def pairs(texts: Sequence[str] | None) -> dict[str, str]:
    """Names and values of all `--set`; the last one of a name counts."""
    return dict(_pair(text) for text in texts or ())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: expected name=value")
    return name.strip(), value
