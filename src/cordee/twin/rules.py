"""The rules of a schedule as values: when, what, and the text of both; `schedule` says what they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Kind = Literal["kill", "pause", "resume"]
"""What is done to a process."""


@dataclass(frozen=True)
class AtStep:
    """Once, as soon as this step is on record."""

    step: int
    timed: ClassVar[bool] = False

    def after(self, step: float) -> float | None:
        """The first moment after `step`; None when there is none."""
        return self.step if self.step > step else None

    def __str__(self) -> str:
        return f"at step {self.step}"


@dataclass(frozen=True)
class AtTime:
    """Once, so many seconds after training began."""

    seconds: float
    timed: ClassVar[bool] = True

    def after(self, seconds: float) -> float | None:
        """The first moment after `seconds`; None when there is none."""
        # The least positive number stands for 0 s, which would not lie after the beginning.
        moment = max(self.seconds, math.ulp(0.0))
        return moment if moment > seconds else None

    def __str__(self) -> str:
        return f"at {_written(self.seconds)} s"


@dataclass(frozen=True)
class EverySteps:
    """At each multiple of this number of steps."""

    steps: int
    timed: ClassVar[bool] = False

    def after(self, step: float) -> float | None:
        """The first multiple after `step`."""
        return (max(0, step) // self.steps + 1) * self.steps

    def __str__(self) -> str:
        return f"every {self.steps} step{'s' if self.steps > 1 else ''}"


@dataclass(frozen=True)
class EveryTime:
    """At each multiple of this number of seconds since training began."""

    seconds: float
    timed: ClassVar[bool] = True

    def after(self, seconds: float) -> float | None:
        """The first multiple after `seconds`."""
        # Quotient and product round: the multiple itself is compared, so that nothing is due twice or left out. (A
        # period that is too short for a float of this size to tell apart is due at the next one.)
        since = max(0.0, seconds)
        count = since // self.seconds
        near = ((count + more) * self.seconds for more in (1, 2))
        return next((moment for moment in near if since < moment < math.inf), math.nextafter(since, math.inf))

    def __str__(self) -> str:
        return f"every {_written(self.seconds)} s"


@dataclass(frozen=True)
class _Placed:
    """An action knows which word of its line it begins with; where it stands does not make it another one."""

    word: int = field(default=0, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Cut(_Placed):
    """Nothing goes over the host's link any more."""

    host: str

    def __str__(self) -> str:
        return f"cut {self.host}"


@dataclass(frozen=True)
class Mend(_Placed):
    """The host's link works again."""

    host: str

    def __str__(self) -> str:
        return f"mend {self.host}"


@dataclass(frozen=True)
class Set(_Placed):
    """Change the host's link or CPU share; settings are pairs of key and text, as written."""

    host: str
    settings: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return " ".join(["set", self.host, *(f"{key}={text}" for key, text in self.settings)])


@dataclass(frozen=True)
class Signal(_Placed):
    """Kill, pause or resume the worker of this rank; without one, a random worker."""

    kind: Kind
    worker: int | None

    def __str__(self) -> str:
        return f"{self.kind} random worker" if self.worker is None else f"{self.kind} worker {self.worker}"


@dataclass(frozen=True)
class KillHost(_Placed):
    """Kill every process of the host."""

    host: str

    def __str__(self) -> str:
        return f"kill host {self.host}"


When = AtStep | AtTime | EverySteps | EveryTime
"""`timed` ones count seconds since training began, the others steps."""
Action = Cut | Mend | Set | Signal | KillHost


@dataclass(frozen=True)
class Rule:
    """One statement: what happens when, and the line that says so (which does not make it another rule)."""

    when: When
    actions: tuple[Action, ...]
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.when}: {' and '.join(map(str, self.actions))}"


def _written(seconds: float) -> str:
    """The shortest text that is read as the same number."""
    return f"{float(seconds)!r}".removesuffix(".0")
