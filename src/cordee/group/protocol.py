"""What workers and their coordinator both know: how a generation is announced, and how silence is understood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BEAT_S = 0.5
"""How often workers and launchers say that they are there. Losses on one host are noticed without it, at once."""
STALL_S = 1.5
"""A beat that comes so late says that its own process did not run: that is not the others' silence."""
HUB_SILENCE_S = 10.0
"""On another host a lost coordinator may look like silence: a worker that hears nothing for so long ends itself."""


@dataclass(frozen=True)
class Go:
    """The next generation, decided: every member gets this same value."""

    generation: int
    members: tuple[int, ...]
    """Worker ids in rank order; a worker's id never changes, its rank is its place in here."""
    target: int
    """How many agreements (steps, evaluations) every member has committed after the hand-over."""
    giver: int | None
    """The worker that hands the result of agreement number `target` to those behind; None if none is behind."""
    admits: bool = False
    """Whether all former members were ready to let others in; if some were not, nobody came in."""
    newcomers: tuple[int, ...] = ()
    """Members that have come in with this generation, and have no state yet."""

    @classmethod
    def read(cls, told: dict[str, Any]) -> Go:
        """From the wire."""
        return cls(**{**told, "members": tuple(told["members"]), "newcomers": tuple(told["newcomers"])})
