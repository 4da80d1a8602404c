"""One key of a plan: what may be written after its name, how that is read, and how a value is written."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cordee.core.errors import PlanError
from cordee.core.words import did_you_mean


@dataclass(frozen=True)
class Key:
    """What is known of one key of a plan."""

    name: str
    part: str
    """The part of the plan it belongs to: feed, split, sync or device."""
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    """The allowed words; empty for numbers and switches."""
    built: tuple[Any, ...] = ()
    """The values that work in this version; empty when all allowed ones do."""
    minimum: float | None = None

    @property
    def allowed(self) -> str:
        """What may be written after `name=`, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, tuple):
            return "numbers of at least 0, not all 0, separated by colons, such as 5:3:2"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind} of at least {self.minimum:g}" if self.minimum is not None else kind

    def read(self, given: Any) -> Any:
        """The value meant by `given` (text from a command line, or a value from YAML or Python)."""
        try:
            value = _READERS[type(self.default)](given)
        except (TypeError, ValueError, OverflowError):
            raise self._refused(given) from None
        if self.choices and value not in self.choices:
            raise self._refused(given)
        if self.minimum is not None and value < self.minimum:
            raise self._refused(given)
        if self.built and value not in self.built:
            works = " or ".join(f"{self.name}={written(one)}" for one in self.built)
            raise PlanError(
                f"plan key {self.name}={written(value)} is not built yet in this version; what works is {works}."
            )
        return value

    def _refused(self, given: Any) -> PlanError:
        """The error for a value that this key never takes."""
        hint = did_you_mean(given, self.choices, f"{self.name}={{}}") if isinstance(given, str) else ""
        return PlanError(f"plan key {self.name} was given {shown(given)}; expected {self.allowed}.{hint}")


def written(value: Any) -> str:
    """The text that `Key.read` reads as `value`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return ":".join(written(one) for one in value)
    return f"{value!r}".removesuffix(".0") if isinstance(value, float) else str(value)


def shown(given: Any) -> str:
    """What was given, for a message: cut where it is long, nested deeply or holds itself."""
    return repr(written(given)) if isinstance(given, (bool, float)) else reprlib.repr(given)


def _word(given: Any) -> str:
    """A word as it stands; true and false are words too where YAML reads something else."""
    if isinstance(given, bool):
        return written(given)
    if not isinstance(given, str):
        raise TypeError
    return given


def _switch(given: Any) -> bool:
    """True or false, also as text."""
    if isinstance(given, str) and given.lower() in ("true", "false"):
        return given.lower() == "true"
    return bool(_exactly(bool, given))


def _whole(given: Any) -> int:
    """A whole number, also as text; 2.5 and true are none."""
    return int(given if isinstance(given, str) else _exactly(int, given))


def _number(given: Any) -> float:
    """A finite number, also as text."""
    value = float(given if isinstance(given, str) else _exactly((int, float), given))
    if not math.isfinite(value):
        raise ValueError
    return value


def _numbers(given: Any) -> tuple[float, ...]:
    """Proportions, as `5:3:2` or as a sequence."""
    values = tuple(_number(one) for one in (given.split(":") if isinstance(given, str) else given))
    if values and (min(values) < 0 or sum(values) == 0):
        raise ValueError
    return values


def _exactly(kind: Any, given: Any) -> Any:
    """`given` if it is of this kind; a bool is no number."""
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        raise TypeError
    return given


# By the type of a key's default.
_READERS: dict[type, Callable[[Any], Any]] = {
    str: _word,
    bool: _switch,
    int: _whole,
    float: _number,
    tuple: _numbers,
}
