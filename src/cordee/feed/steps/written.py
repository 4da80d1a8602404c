"""Steps as JSON and back: with a model they are saved, and what it predicts on goes through them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union, get_args

import msgspec

from cordee.core.errors import DataError
from cordee.feed.steps.carried import Enter, Leave
from cordee.feed.steps.categories import Classes, ClassesOf, Hash, OneHot, OneHotOf
from cordee.feed.steps.numbers import Affine, Fill, Filled, Scale, Standardize
from cordee.feed.steps.pack import Finish, Finished, Pack
from cordee.feed.steps.rows import Drop, Filter, FlatMap, Map, Rename, Sample, Select
from cordee.feed.steps.user import Function
from cordee.feed.steps.values import Value
from cordee.feed.steps.words import Bytes, Pad, Tokenized, Words, WordsOf

Known = Union[  # noqa: UP007 (of types that are values, not annotations)
    Map, FlatMap, Filter, Sample, Select, Drop, Rename, Affine, Standardize, Scale, Fill, Filled, OneHot, OneHotOf,
    Classes, ClassesOf, Hash, Words, WordsOf, Bytes, Tokenized, Pad, Pack, Finish, Finished, Leave, Enter
]  # fmt: skip
KINDS: tuple[type, ...] = get_args(Known)
Functions = Mapping[str, Callable[..., Any]]


def written(steps: Iterable[Any]) -> tuple[Any, ...]:
    """Steps as JSON has them; the user's functions by their names. Steps of another make are not known here."""
    return tuple(msgspec.to_builtins(one, enc_hook=_name) for one in steps)


def read_steps(given: Sequence[Any], functions: Functions | None = None) -> tuple[Any, ...]:
    """The steps that `written` wrote, with these functions of the user's; `DataError` names one that is missing."""
    known = dict(functions or {})

    def take(kind: type, name: Any) -> Function:
        if kind is not Function:
            raise NotImplementedError(kind)
        if name not in known:
            raise DataError(
                f"the steps use a function of yours, {name!r}, which is not saved with them: give it again, "
                f"functions={{{name!r}: {name if str(name).isidentifier() else '...'}}}"
            )
        return Function(known[name])

    try:
        return tuple(msgspec.convert(one, Known, dec_hook=take) for one in given)
    except msgspec.ValidationError as error:
        raise DataError(f"these steps are damaged, or of another version of Cordée: {error}") from error


def functions_in(given: Sequence[Any]) -> tuple[str, ...]:
    """Names of the user's functions in written steps."""
    return tuple(dict.fromkeys(one["function"] for one in given if isinstance(one, Mapping) and "function" in one))


def classes_of(steps: Iterable[Any], before: Mapping[str, tuple[Value, ...]] = {}) -> dict[str, tuple[Value, ...]]:
    """Of columns of class numbers behind fitted steps: what each number stands for; `before`: of those in the files."""
    found = dict(before)
    for step in steps:
        if isinstance(step, ClassesOf):
            found |= zip(step.columns, step.classes, strict=True)
        elif isinstance(step, Rename):
            found = {dict(step.names).get(name, name): values for name, values in found.items()}
        elif isinstance(step, Finished) and step.classes:
            earlier = found.pop(step.label[0], None)
            found["y"] = tuple(earlier[int(one)] for one in step.classes) if earlier else step.classes
    return found


def _name(held: Any) -> str:
    assert isinstance(held, Function), held
    return held.name
