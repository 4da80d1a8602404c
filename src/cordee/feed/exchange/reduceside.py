"""The reduce side of a map-reduce: the pairs of one part from all map tasks, merged by key and reduced."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cordee.feed.exchange.counters import Counters
from cordee.feed.exchange.mapside import attempt, named
from cordee.feed.exchange.pairs import Key, Segment, Value, Writer, merged, narrowed, value_of

Reduce = Callable[[Any, Iterator[Any]], Any]


@dataclass(frozen=True)
class ReduceWork:
    """What every reduce task does; its processes are sent this."""

    reduce: Reduce
    folder: str

    def __call__(self, task: tuple[int, Sequence[Segment]]) -> tuple[Segment, Counters]:
        """Reduce one part: where its result lies, in the order of keys."""
        number, given = task
        began = time.perf_counter()
        path = attempt(self.folder, "reduce", number)
        Path(path).touch()  # tells how often the task was begun
        segments, spilled = narrowed(given, f"{path}-wide")
        writer = Writer(f"{path}-out")
        keys = 0
        for key, values in merged(segments):
            writer.write(key, [named("reduce", key, partial(self._reduced, key, values))])
            keys += 1
        found = writer.end_segment(0)
        writer.close()
        for one in set(segments) - set(given):
            os.unlink(one.path)
        return found, Counters(
            keys=keys,
            bytes_reduced=found.stop,
            bytes_spilled=spilled,
            reduce_tasks=1,
            reduce_s=time.perf_counter() - began,
        )

    def _reduced(self, key: Key, values: Iterator[Value]) -> Value:
        return value_of(self.reduce(key, values))
