"""Small pieces of sentences that many messages need."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 50
"""Letters of what was given that are compared: it may be anything."""


def plural(count: float, thing: str) -> str:
    """`1 worker`, `3 workers`, `1.5 cores`."""
    return f"{count:,.12g} {thing}{'' if count == 1 else 's'}"


def did_you_mean(given: str, known: Iterable[str], form: str = "{}") -> str:
    """` Did you mean epochs?`, ready to be put behind a sentence; empty if nothing is near."""
    near = nearest(given, known)
    return f" Did you mean {form.format(near)}?" if near else ""


def nearest(given: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The one of the `known` words that `given` nearly is; empty if there is none."""
    return next(iter(difflib.get_close_matches(given[:_LONGEST], sorted(known), n=1, cutoff=cutoff)), "")


def amount(count: float) -> str:
    """A number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
