"""One line of `cordee doctor`: what was looked at, what was found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """What one look at this machine found."""

    name: str
    state: State
    found: str
    advice: str = ""
    """What to do; empty where there is nothing to do."""
    code: int = 0
    """For an error: the exit code with which a run would end because of it."""

    def to_dict(self) -> dict[str, str]:
        """As `cordee doctor --json` prints it."""
        return {"check": self.name, "state": self.state, "found": self.found, "advice": self.advice}


def ok(name: str, found: str, advice: str = "") -> Check:
    """Nothing stands in the way; an advice may still make it better."""
    return Check(name, "ok", found, advice)


def warning(name: str, found: str, advice: str) -> Check:
    """Something does not work, or not as well as it could, that many runs do without."""
    return Check(name, "warning", found, advice)


def error(name: str, found: str, advice: str, code: int = 1) -> Check:
    """A run would fail."""
    return Check(name, "error", found, advice, code)
