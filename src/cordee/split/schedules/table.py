"""A pipeline schedule as a value: for each rank, the actions that it executes, in order. No torch here.

One step of a model that is cut into stages consists of actions: one stage computes one micro-batch forwards or
backwards. A table says in which order each rank executes its own. What an action needs, and which results travel
between ranks, follows from the table; `check.py` refuses a table that cannot run.

As text a table has one line per rank, such as `F0.0 F0.1 B0.0 B0.1`; `#` begins a comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cordee.core.errors import PlanError

KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "gradient of inputs",
    "W": "gradient of weights",
}
"""What an action computes; B is I and W in one."""
_ACTION = re.compile(r"([FBIW])(\d{1,6})\.(\d{1,6})", re.ASCII)
_MOST_SHOWN = 40
"""Characters of a wrong word that its error shows."""


class Action(NamedTuple):
    """One stage computes one micro-batch."""

    kind: str
    """`F` forward, `B` the whole backward, or its two parts: `I` gradient of inputs, `W` gradient of weights."""
    stage: int
    """The virtual stage, from 0; stage s lies on rank s % ranks."""
    micro: int
    """The micro-batch, from 0."""

    def __str__(self) -> str:
        """`F0.3`: the kind, the stage, the micro-batch."""
        return f"{self.kind}{self.stage}.{self.micro}"


@dataclass(frozen=True)
class Table:
    """The actions of one step, in the order in which each rank executes them."""

    rows: tuple[tuple[Action, ...], ...]
    """For each rank of the pipeline."""

    @property
    def ranks(self) -> int:
        """Ranks of the pipeline."""
        return len(self.rows)

    @cached_property
    def stages(self) -> int:
        """Virtual stages; a rank may hold several."""
        return 1 + max((action.stage for row in self.rows for action in row), default=-1)

    @cached_property
    def micros(self) -> int:
        """Micro-batches of a step."""
        return 1 + max((action.micro for row in self.rows for action in row), default=-1)

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        return stage % self.ranks

    def needs(self, action: Action) -> tuple[Action, ...]:
        """What must be done before `action`, on any rank; a rank waits for nothing else than this.

        The loss is part of the last stage's forward, so the backward of that stage needs no gradient from elsewhere.
        """
        kind, stage, micro = action
        if kind == "F":
            return (Action("F", stage - 1, micro),) if stage else ()
        if kind == "W":
            return (Action("I", stage, micro),)
        behind = (self._backward(stage + 1, micro),) if stage + 1 < self.stages else ()
        return (Action("F", stage, micro), *behind)

    def arrives_from(self, action: Action) -> Action | None:
        """The action on another rank whose result comes as a message: activations for F, gradients for B and I."""
        return next((one for one in self.needs(action) if not self._is_near(one, action)), None)

    def goes_to(self, action: Action) -> Action | None:
        """The action on another rank to which the result of `action` is sent as a message."""
        kind, stage, micro = action
        if kind == "F" and stage + 1 < self.stages:
            target = Action("F", stage + 1, micro)
        elif kind in "BI" and stage:
            target = self._backward(stage - 1, micro)
        else:
            return None
        return None if self._is_near(action, target) else target

    def _is_near(self, one: Action, other: Action) -> bool:
        return self.rank_of(one.stage) == self.rank_of(other.stage)

    @cached_property
    def _in_two(self) -> frozenset[tuple[int, int]]:
        """Stage and micro-batch of each backward that is computed as I and W."""
        return frozenset((one.stage, one.micro) for row in self.rows for one in row if one.kind == "I")

    def _backward(self, stage: int, micro: int) -> Action:
        """What gives the gradient of a stage's inputs: B, or I where the table has it in two."""
        return Action("I" if (stage, micro) in self._in_two else "B", stage, micro)

    def __str__(self) -> str:
        """One line per rank; `parse` reads it as the same table."""
        return "\n".join(" ".join(map(str, row)) for row in self.rows)


def parse(text: str) -> Table:
    """The table that `text` means; what is no action is a `PlanError`. Whether the table can run, `check` says."""
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            rows.append(tuple(_action(word, number) for word in words))
    if not rows:
        raise PlanError("pipeline table: it holds no action. Write one line per rank, such as F0.0 F0.1 B0.0 B0.1.")
    return Table(tuple(rows))


def _action(word: str, line: int) -> Action:
    found = _ACTION.fullmatch(word)
    if found is None:
        shown = word if len(word) <= _MOST_SHOWN else f"{word[:_MOST_SHOWN]}..."
        raise PlanError(
            f"pipeline table, line {line}: {shown!r} is not an action. Expected F (forward), B (backward), I (gradient "
            "of inputs) or W (gradient of weights), then stage, dot and micro-batch, such as F0.3."
        )
    return Action(found[1], int(found[2]), int(found[3]))
