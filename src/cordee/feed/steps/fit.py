"""From the steps that a user wrote to those that are applied: columns found, statistics gathered, in few passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from cordee.core.errors import DataError
from cordee.feed.columns import Schema
from cordee.feed.steps.seam import Fitting, Rows, Step

Steps = tuple["Step | Fitting", ...]
Gather = Callable[[tuple[Step, ...], tuple[Fitting, ...]], list[Any]]
"""Statistics of each of these over the rows of the training set, as they are after the steps before them."""
Blocks = Callable[[], Iterator[Rows]]
"""The rows of the files from the first on, `LOOK` or somewhat more at a time."""

LOOK = 512
"""So many rows are looked at to see what a user's function makes of them; the next ones where steps leave none."""


@runtime_checkable
class Open(Protocol):
    """A step that knows what it is for once it saw the columns before it, and some rows."""

    def on(self, schema: Schema, sample: Rows) -> Step | Fitting:
        """The step for these columns."""
        ...


@runtime_checkable
class Apart(Protocol):
    """A fitting that can be gathered together with others, if none of them changes what it reads."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns that its statistics are of."""
        ...

    @property
    def makes(self) -> tuple[str, ...]:
        """Columns that it changes or makes."""
        ...


def fit(steps: Sequence[Step | Fitting], schema: Schema, blocks: Blocks, gather: Gather) -> tuple[Step, ...]:
    """The steps as they are applied, in order; `schema` and `blocks` are of the files.

    Fittings next to each other, none of which reads what another one makes, are gathered in one pass.
    """
    left = list(steps)
    done: list[Step] = []
    looked = _Looked(blocks)
    while left:
        step = _on(left.pop(0), schema, looked)
        if not isinstance(step, Fitting):
            schema = step.schema(schema)
            looked.append(step)
            done.append(step)
            continue
        group = [step]
        after = step.schema(schema)
        while left and (follows := _beside(group, left[0], after, looked)) is not None:
            group.append(follows)
            after = follows.schema(after)
            left.pop(0)
        for one, statistics in zip(group, gather(tuple(done), tuple(group)), strict=True):
            if statistics is None:
                raise DataError(
                    f"{_names([one])}: there is no row in the training set to go by: check split and filter"
                )
            fitted = one.fitted(statistics)
            schema = fitted.schema(schema)
            looked.append(fitted)
            done.append(fitted)
    return tuple(done)


def schema_of(steps: Iterable[Step], schema: Schema) -> Schema:
    """The columns behind all of these steps."""
    for step in steps:
        schema = step.schema(schema)
    return schema


def applied(steps: Iterable[Step], rows: Rows) -> Rows:
    """The rows behind all of these steps."""
    for step in steps:
        rows = step.apply(rows)
    return rows


class _Looked:
    """Some rows behind the steps so far; later ones are read where steps leave none of them."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks, self._steps = blocks, list[Step]()
        self._rows: Rows | None = None

    def append(self, step: Step) -> None:
        self._steps.append(step)
        if self._rows is not None:
            self._rows = step.apply(self._rows)

    def rows(self) -> Rows:
        if self._rows is None or not len(self._rows):
            self._rows = self._first()
        return self._rows

    def _first(self) -> Rows:
        """Of the first block that steps leave rows of; no more than one is held."""
        for block in self._blocks():
            if len(rows := applied(self._steps, block)):
                return rows
        raise DataError("there is no row left behind " + (_names(self._steps) or "reading") + ": check the steps")


def _names(steps: Iterable[Any]) -> str:
    return ", ".join(getattr(one, "called", type(one).__name__) for one in steps)


def _on(step: Step | Fitting, schema: Schema, looked: _Looked) -> Step | Fitting:
    return step.on(schema, looked.rows()) if isinstance(step, Open) else step


def _beside(group: Sequence[Fitting], step: Step | Fitting, schema: Schema, looked: _Looked) -> Fitting | None:
    """The next step if its statistics can be gathered in the same pass."""
    if not isinstance(step, Fitting) or not all(isinstance(one, Apart) for one in group):
        return None
    made = {name for one in group if isinstance(one, Apart) for name in one.makes}
    rows = looked.rows()
    untouched = replace(rows, columns={name: one for name, one in rows.columns.items() if name not in made})
    found = step.on(schema, untouched) if isinstance(step, Open) else step
    if not isinstance(found, Fitting) or not isinstance(found, Apart):
        return None
    return found if made.isdisjoint(found.reads) else None
