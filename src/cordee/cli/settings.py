"""`--set name=value`, as every command that takes a job reads it."""

from __future__ import annotations

from collections.abc import Sequence

from cordee.core.errors import UsageError


def pairs(texts: Sequence[str] | None) -> dict[str, str]:
    """Names and values of all `--set`; the last one of a name counts."""
    return dict(_pair(text) for text in texts or ())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: expected name=value")
    return name.strip(), value
