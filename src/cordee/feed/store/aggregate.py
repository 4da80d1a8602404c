"""Statistics over the training rows of a recipe, for steps that are fitted: gathered by several processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cordee.core import interrupts
from cordee.feed.columns import taken
from cordee.feed.steps.seam import TRAIN, Fitting
from cordee.feed.store.build import Progress, Tell, processes_for
from cordee.feed.store.cutting import Span
from cordee.feed.store.recipe import Recipe, RowMaker, named_step
from cordee.feed.store.span import Done
from cordee.feed.store.write import nbytes_of
from cordee.feed.tasks import run_tasks
from cordee.feed.taskwire import report


def aggregate(
    recipe: Recipe, fittings: Sequence[Fitting], *, processes: int | None = None, tell: Tell | None = None
) -> list[Any]:
    """The statistics that each of the fittings gathers from the rows that come out of a recipe's steps.

    Only rows of the training set count; None where there are none. Put together in the order of the files, so that they
    are the same to the last bit for any number of processes.
    """
    spans = recipe.spans
    if processes is None or recipe.reader.in_process:
        processes = processes_for(recipe, len(spans))
    began, rows, nbytes, read = time.monotonic(), 0, 0, 0

    def hear(done: Done) -> None:
        nonlocal rows, nbytes, read
        interrupts.check()
        rows, nbytes, read = rows + done.rows, nbytes + done.nbytes, read + done.read
        if tell is not None:
            tell(Progress(rows, nbytes, read, recipe.nbytes, time.monotonic() - began))

    gather = _Gather(recipe.maker, tuple(fittings))
    early: dict[int, list[Any]] = {}
    merged: list[Any] = [None] * len(fittings)
    following = 0
    for number, statistics in run_tasks(gather, spans, processes=processes, notice=hear):
        early[number] = statistics
        while following in early:
            merged = gather.merged(merged, early.pop(following))
            following += 1
    return merged


@dataclass(frozen=True)
class _Gather:
    """Gathers from one span, in whichever process it is sent to."""

    maker: RowMaker
    fittings: tuple[Fitting, ...]

    def __call__(self, span: Span) -> list[Any]:
        whole: list[Any] = [None] * len(self.fittings)
        for place, size in zip(span.places, span.sizes, strict=True):
            for rows, chunk in self.maker.rows(place, span.start, span.start, span.stop):
                report(Done(chunk.rows, nbytes_of(rows.columns)))
                ids = np.flatnonzero(rows.sets == TRAIN)
                if not len(ids):
                    continue
                columns = rows.columns
                if len(ids) < len(rows):
                    columns = {name: taken(column, ids) for name, column in columns.items()}
                parts = []
                for fitting in self.fittings:
                    with named_step(fitting, f" in {place.key}"):
                        parts.append(fitting.of(columns))
                whole = self.merged(whole, parts)
            report(Done(read=size))
        return whole

    def merged(self, one: list[Any], other: list[Any]) -> list[Any]:
        """Both, where there is something of both."""
        return [
            right if left is None else left if right is None else fitting.merge(left, right)
            for fitting, left, right in zip(self.fittings, one, other, strict=True)
        ]
