"""How the user speaks to us, so that messages can answer alike: options of a command, or arguments in Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """Names settings as the one who reads the message would write them."""

    python: bool = False
    """Whether `cordee.train(...)` started the run, and no command."""
    more: tuple[str, ...] = ()
    """Words of the command that a launch knows nothing of: where hosts meet."""
    way_on: bool = True
    """Whether a message says how to go on with a run; `cordee twin run` says it itself."""

    def option(self, name: str, value: object = None) -> str:
        """`--workers 3` or `workers=3`; without a value only its name, `--workers` or `workers=`."""
        if self.python:
            return f"{name}=" + ("" if value is None else repr(value))
        return f"--{name}" + ("" if value is None else f" {value}")

    def flag(self, name: str) -> str:
        """`--resume` or `resume=True`."""
        return f"{name}=True" if self.python else f"--{name}"


COMMAND = Wording()
PYTHON = Wording(python=True)
