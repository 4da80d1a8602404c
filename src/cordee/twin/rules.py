"""The rules of a schedule as values: when, what, and the text of both; `schedule` says what they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Verb = Literal["cut", "mend", "set", "kill", "pause", "resume"]


@dataclass(frozen=True)
class When:
    """A moment, or with `every` each multiple of it: in steps, or if `timed` in seconds since training began."""

    number: float
    timed: bool = False
    every: bool = False

    def after(self, now: float) -> float | None:
        """The first moment after `now`; None when there is none."""
        if not self.every:
            # The least positive number stands for 0 s, which would not lie after the beginning.
            moment = max(self.number, math.ulp(0.0))
            return moment if moment > now else None
        # Quotient and product round: the multiple itself is compared, so that nothing is due twice or left out. (A
        # period that is too short for a float of this size to tell apart is due at the next one.)
        since = max(0, now)
        count = since // self.number
        near = ((count + more) * self.number for more in (1, 2))
        return next((moment for moment in near if since < moment < math.inf), math.nextafter(since, math.inf))

    def __str__(self) -> str:
        # The shortest text that is read as the same number.
        number = f"{self.number!r}".removesuffix(".0")
        if self.timed:
            return f"{'every' if self.every else 'at'} {number} s"
        return f"every {number} step{'s' if self.number > 1 else ''}" if self.every else f"at step {number}"


@dataclass(frozen=True)
class Action:
    """What is done to a host (its link, its CPU share, all its processes) or to the process of a worker."""

    verb: Verb
    host: str = ""
    """The host of `cut`, `mend`, `set` and `kill host`; empty: a worker is meant."""
    worker: int | None = None
    """The rank to kill, pause or resume; None without a host: a random worker."""
    settings: tuple[tuple[str, str], ...] = ()
    """What `set` changes: pairs of key and text, as written."""
    word: int = field(default=0, compare=False, repr=False, kw_only=True)
    """Which word of its line it begins with; where it stands does not make it another action."""

    def __str__(self) -> str:
        if not self.host:
            return f"{self.verb} random worker" if self.worker is None else f"{self.verb} worker {self.worker}"
        host = f"host {self.host}" if self.verb == "kill" else self.host
        return " ".join([self.verb, host, *(f"{key}={text}" for key, text in self.settings)])


@dataclass(frozen=True)
class Rule:
    """One statement: what happens when, and the line that says so (which does not make it another rule)."""

    when: When
    actions: tuple[Action, ...]
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.when}: {' and '.join(map(str, self.actions))}"
