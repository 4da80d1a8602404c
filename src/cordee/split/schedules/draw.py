"""A step of a pipeline as text: ranks down, time across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordee.split.schedules.table import Action

FILL = {"F": ">", "B": "<", "I": "<", "W": "="}
"""What follows the name of an action until its end."""
IDLE = "."


class Span(NamedTuple):
    """An action from its begin to its end, in milliseconds of the step."""

    action: Action
    begin: float
    end: float


def draw(rows: Sequence[Sequence[Span]], width: int = 200) -> str:
    """One line per rank, as many columns as the shortest action needs for its name, but at most `width`.

    `F3>` is a forward of micro-batch 3, `B3<` a backward, `I3<` and `W3=` its parts. With several stages per rank the
    stage stands before the micro-batch: `F4.3>`. A name that is longer than its action is cut off.
    """
    spans = [span for row in rows for span in row]
    whole = max((span.end for span in spans), default=0.0)
    heads = [f"rank {number} " for number in range(len(rows))]
    margin = max(map(len, heads), default=0)
    alone = all(len({span.action.stage for span in row}) <= 1 for row in rows)
    names = {span.action: _name(span.action, alone) for span in spans}
    shortest = min((span.end - span.begin for span in spans if span.end > span.begin), default=0.0)
    columns = (1 + max(map(len, names.values()), default=0)) * whole / shortest if shortest else 0.0
    columns = round(min(columns, max(1, width - margin)))
    scale = columns / whole if whole else 0.0
    lines = []
    for head, row in zip(heads, rows, strict=True):
        line = [IDLE] * columns
        for span in row:
            begin, end = (round(scale * moment) for moment in (span.begin, span.end))
            text = names[span.action].ljust(end - begin, FILL[span.action.kind])
            line[begin:end] = text[: end - begin]
        lines.append(head.ljust(margin) + "".join(line))
    return "\n".join(lines)


def _name(action: Action, alone: bool) -> str:
    return f"{action.kind}{action.micro}" if alone else str(action)
