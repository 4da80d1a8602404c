"""Interleaved 1F1B: each rank holds several short stages, so that the pipeline fills and drains sooner."""

from __future__ import annotations

from itertools import islice

from cordee.split.schedules.one_f_one_b import one_f_one_b
from cordee.split.schedules.table import Action, Table


def interleaved(ranks: int, micros: int, chunks: int = 2) -> Table:
    """`chunks` stages per rank: the bubble is that much smaller, messages that many times as many.

    Micro-batches go through the stages of a rank in groups: all of a group through the first, then all through the
    second. A group needs at least one micro-batch per rank, or a rank waits before its next stage. So the groups are as
    many as that allows, of sizes that differ by one at most; no number of micro-batches is a special case.
    """
    if chunks == 1:
        return one_f_one_b(ranks, micros)
    sizes = _groups(ranks, micros)
    forwards, backwards = _order(sizes, range(chunks)), _order(sizes, range(chunks)[::-1])
    rows = []
    for rank in range(ranks):
        # Until the first gradient is back: the first group in all stages but the last, and the way to the end and back.
        ahead = (chunks - 1) * sizes[0] + 2 * (ranks - 1 - rank)
        waiting = iter([Action("F", chunk * ranks + rank, micro) for chunk, micro in forwards])
        row = list(islice(waiting, ahead))
        for chunk, micro in backwards:
            row += [*islice(waiting, 1), Action("B", chunk * ranks + rank, micro)]
        rows.append(tuple(row))
    return Table(tuple(rows))


def _groups(ranks: int, micros: int) -> list[int]:
    """Sizes of the groups, the larger ones first: no later group may be larger than the first."""
    count = max(1, micros // ranks)
    size, more = divmod(micros, count)
    return [size + (number < more) for number in range(count)]


def _order(sizes: list[int], chunks: range) -> list[tuple[int, int]]:
    """Stage of the rank and micro-batch, in the order in which every rank computes them."""
    order, first = [], 0
    for size in sizes:
        order += [(chunk, micro) for chunk in chunks for micro in range(first, first + size)]
        first += size
    return order
