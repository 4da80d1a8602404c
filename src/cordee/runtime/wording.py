"""How the user speaks to us, so that messages can answer alike: options of a command, or arguments in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SEVERAL = {"engine_settings": "--engine-set"}
"""Arguments in Python that are mappings, and the option of the command for one entry."""


@dataclass(frozen=True)
class Wording:
    """Names settings as the one who reads the message would write them."""

    python: bool = False
    """Whether `cordee.train(...)` started the run, and no command."""
    way_on: bool = True
    """Whether a message says how to go on with a run; `cordee twin run` says it itself."""

    def option(self, name: str, value: object = None) -> str:
        """`--workers 3` or `workers=3`; without a value only its name, `--workers` or `workers=`."""
        if self.python:
            return f"{name}=" + ("" if value is None else repr(value))
        return " ".join(self.words(name, value))

    def words(self, name: str, value: object = None) -> list[str]:
        """The same as words of a command; one option per entry of a mapping."""
        if isinstance(value, Mapping):
            return [word for key, one in value.items() for word in (SEVERAL[name], f"{key}={one}")]
        option = SEVERAL.get(name) or f"--{name.replace('_', '-')}"
        return [option] if value is None or value is True else [option, str(value)]

    def flag(self, name: str) -> str:
        """`--resume` or `resume=True`."""
        return self.option(name, True)


COMMAND = Wording()
PYTHON = Wording(python=True)
