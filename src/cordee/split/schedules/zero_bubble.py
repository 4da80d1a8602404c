"""Zero bubble (ZB-H1): 1F1B with the backward in two, so that gradients of weights fill the time of waiting."""

from __future__ import annotations

from cordee.split.schedules.table import Action, Table


def zero_bubble(ranks: int, micros: int) -> Table:
    """A third of the bubble of 1F1B; no rank holds the activations of more than `ranks` micro-batches.

    The rank before waits for the gradient of inputs only. Rank r puts the gradients of weights off by r micro-batches.
    It has the memory for that, because it begins its backwards after fewer forwards.
    """
    return Table(tuple(_row(rank, ranks - 1 - rank, micros) for rank in range(ranks)))


def _row(stage: int, ahead: int, micros: int) -> tuple[Action, ...]:
    """`ahead`: how many forwards come before the first pair of a forward and a backward, as in 1F1B."""
    row = [Action("F", stage, micro) for micro in range(min(ahead, micros))]
    for micro in range(micros):
        if ahead + micro < micros:
            row.append(Action("F", stage, ahead + micro))
        row.append(Action("I", stage, micro))
        if micro >= stage:
            row.append(Action("W", stage, micro - stage))
    row += [Action("W", stage, micro) for micro in range(max(0, micros - stage), micros)]
    return tuple(row)
