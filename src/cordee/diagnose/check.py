"""One line of `cordee doctor`: what was looked at, what was found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """What one look at this machine found.

    A warning: something does not work as well as it could, that many runs do without. An error: a run would fail.
    """

    name: str
    state: State
    found: str
    advice: str = ""
    """What to do; empty where there is nothing to do."""
    code: int = 1
    """For an error: the exit code with which a run would end because of it."""

    def to_dict(self) -> dict[str, str]:
        """As `cordee doctor --json` prints it."""
        return {"check": self.name, "state": self.state, "found": self.found, "advice": self.advice}
