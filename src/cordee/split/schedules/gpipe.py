"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from cordee.split.schedules.table import Action, Table


def gpipe(ranks: int, micros: int) -> Table:
    """Every rank holds the activations of all micro-batches at the end of its forwards."""
    each = range(micros)
    return Table(
        tuple(
            (*(Action("F", rank, one) for one in each), *(Action("B", rank, one) for one in each))
            for rank in range(ranks)
        )
    )
