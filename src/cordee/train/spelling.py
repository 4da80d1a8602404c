"""Names of fields as users write them: one that does not exist is answered with the nearest that does."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, TypeVar

from cordee.core.errors import JobError
from cordee.core.words import did_you_mean

Kind = TypeVar("Kind")


def refuse_unknown(kind: type[Any], given: Iterable[str]) -> None:
    """Raise `JobError` for the first name that is no field of the dataclass `kind`."""
    known = [one.name for one in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            fields = ", ".join(sorted(known))
            raise JobError(f"{kind.__name__} has no field {name!r}.{did_you_mean(name, known)} Fields: {fields}")


def spelt(kind: type[Kind]) -> type[Kind]:
    """Let a dataclass say, as a `JobError`, which field it was given that it does not have, or needs and did not get.

    Python's own error would name the method `__init__`, and no field that was meant.
    """
    made: Any = kind.__init__
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    unset = dataclasses.MISSING
    needed = [one.name for one in fields if one.default is unset and one.default_factory is unset]

    @functools.wraps(made)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        refuse_unknown(kind, given)
        if missing := [name for name in needed[len(args) :] if name not in given]:
            raise JobError(f"{kind.__name__}(...) needs {', '.join(f'{name}=...' for name in missing)} too")
        made(self, *args, **given)

    kind.__init__ = checked  # type: ignore[method-assign]
    return kind
