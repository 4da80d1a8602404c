"""1F1B: as soon as the first gradient is back, one backward follows each forward."""

from __future__ import annotations

from cordee.split.schedules.table import Action, Table


def one_f_one_b(ranks: int, micros: int) -> Table:
    """The step time of GPipe, but rank r never holds the activations of more than `ranks - r` micro-batches."""
    return Table(tuple(_row(rank, ranks - 1 - rank, micros) for rank in range(ranks)))


def _row(stage: int, ahead: int, micros: int) -> tuple[Action, ...]:
    """`ahead`: how many forwards come before the first pair of a forward and a backward."""
    row = [Action("F", stage, micro) for micro in range(min(ahead, micros))]
    for micro in range(micros):
        if ahead + micro < micros:
            row.append(Action("F", stage, ahead + micro))
        row.append(Action("B", stage, micro))
    return tuple(row)
