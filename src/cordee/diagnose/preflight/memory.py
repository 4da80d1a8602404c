"""Verdicts of former starts, in the user's cache folder: an unchanged job is not checked again.

Only that an objective was accepted without a word is remembered. A cache is a convenience: one that is damaged,
missing or not writable costs a check, no more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path

import torch

from cordee import __version__
from cordee.group.team import Team

KIND = "1"
"""Counted up when the tests change, so that what was judged otherwise is forgotten."""
MOST_KEPT = 500


def key_of(parts: Iterable[str | None]) -> str | None:
    """One key made of all that a verdict depends on; None if one of the parts is not known."""
    told = [KIND, __version__, str(torch.__version__), platform.python_version(), *parts]
    return None if None in told else hashlib.sha256(json.dumps(told).encode()).hexdigest()


def remembered(key: str | None, team: Team) -> bool:
    """Whether all workers remember that this was accepted; every one of them calls this."""
    known = key is not None and key in _read()
    while True:
        votes = torch.tensor([float(known), 1.0])
        if team.agree([votes]):
            return float(votes[0]) == float(votes[1])


def remember(key: str | None) -> None:
    """Remember it, if the folder can be written."""
    if key is None:
        return
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        keys = [*(one for one in _read() if one != key), key][-MOST_KEPT:]
        temporary.write_text(json.dumps(keys, indent=0), encoding="utf-8")
        temporary.replace(path)  # another process reads the old file or the new one, never half of one


def _path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cordee" / "preflight.json"


def _read() -> list[str]:
    try:
        found = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, RuntimeError, ValueError):
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
