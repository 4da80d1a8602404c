"""Map, combine, exchange by key, reduce: over several processes of this host, with files between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from cordee.core.errors import UsageError
from cordee.core.machine import usable_cores
from cordee.feed.exchange.counters import Counters
from cordee.feed.exchange.cutting import pieces_of
from cordee.feed.exchange.mapside import Combine, Map, MapWork
from cordee.feed.exchange.pairs import FAN, Key, Segment, Value, merged
from cordee.feed.exchange.reduceside import Reduce, ReduceWork
from cordee.feed.exchange.scratch import Scratch
from cordee.feed.tasks import run_tasks

T = TypeVar("T")
R = TypeVar("R")
UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
LEAST_MEMORY = 1 << 16


class Reduced(dict[Any, Any]):
    """The result of a map-reduce: for each key what `reduce` gave, in the order of the keys."""

    counters: Counters
    """What was done: rows, bytes, tries and seconds."""


class Stream:
    """The result of a map-reduce, read from disk: pairs (key, value), once, in the order of the keys."""

    def __init__(self, segments: Sequence[Segment], scratch: Scratch, counters: Counters) -> None:
        """Of the reducers' files; their folder is removed at the end."""
        self.counters = counters
        """What was done: rows, bytes, tries and seconds."""
        self._scratch = scratch
        self._pairs = _pairs(segments)

    def __iter__(self) -> Iterator[tuple[Key, Value]]:
        """Itself."""
        return self

    def __next__(self) -> tuple[Key, Value]:
        """The next pair."""
        try:
            return next(self._pairs)
        except StopIteration:
            self.close()
            raise

    def close(self) -> None:
        """Remove the files; the end of the pairs does so too."""
        self._scratch.close()

    def __del__(self) -> None:
        """Leave nothing on the disk."""
        self.close()


@overload
def map_reduce(
    source: Any,
    map: Map,
    reduce: Reduce,
    combine: Combine | None = None,
    *,
    processes: int | None = None,
    partitions: int | None = None,
    memory: int | str = "256MB",
    stream: Literal[False] = False,
) -> Reduced: ...


@overload
def map_reduce(
    source: Any,
    map: Map,
    reduce: Reduce,
    combine: Combine | None = None,
    *,
    processes: int | None = None,
    partitions: int | None = None,
    memory: int | str = "256MB",
    stream: Literal[True],
) -> Stream: ...


def map_reduce(
    source: Any,
    map: Map,
    reduce: Reduce,
    combine: Combine | None = None,
    *,
    processes: int | None = None,
    partitions: int | None = None,
    memory: int | str = "256MB",
    stream: bool = False,
) -> Reduced | Stream:
    """Map items to pairs, bring the pairs of each key together, and reduce them, in several processes.

    `source`: text files, whose lines are the items (paths, URLs, patterns, folders, or a list of these, also gzip'ed);
    a chain or source of `cordee.data`, whose rows come in chunks, as dicts of arrays; or anything that gives items.
    `map(item)` gives pairs (key, value), `reduce(key, values)` a value for each key; `combine(key, values)`, where one
    is given, makes one value of several of a task before they are exchanged. Keys and values may be numbers, texts,
    bytes, tuples, and values NumPy arrays, lists and dicts too; they are not pickled.

    A process whose pairs take more than `memory` writes them to the temporary folder. A task whose process dies is done
    again. The result is a dict in the order of the keys, or with `stream=True` an iterator of (key, value) that reads
    it from disk; its `counters` say what was done. `processes=0` does all in this process.
    """
    count = len(usable_cores()) if processes is None else processes
    parts = max(1, min(count, FAN)) if partitions is None else partitions
    if count < 0 or parts < 1:
        raise UsageError(f"processes={processes}, partitions={partitions}: expected 0 or more, and 1 or more")
    budget = bytes_of(memory)
    began = time.perf_counter()
    scratch = Scratch()
    folder = scratch.path
    try:
        reading, pieces = pieces_of(source, folder)
        work = MapWork(reading, map, combine, folder, parts, budget)
        mapped, counters = _all(work, list(enumerate(pieces)), count)
        tasks = [(number, [one[number] for one in mapped]) for number in range(parts)]
        segments, more = _all(ReduceWork(reduce, folder), tasks, count)
        counters = replace(counters + more, map_tries=_tries(folder, "map"), reduce_tries=_tries(folder, "reduce"))
        if stream:
            return Stream(segments, scratch, replace(counters, seconds=time.perf_counter() - began))
        result = Reduced(_pairs(segments))
        result.counters = replace(counters, seconds=time.perf_counter() - began)
    except BaseException:
        scratch.close()
        raise
    scratch.close()
    return result


def _tries(folder: str, kind: str) -> int:
    """How often tasks of a kind were begun: each has made a file then."""
    return len(list(Path(folder).glob(f"{kind}-??????-{'?' * 12}")))


def _all(work: Callable[[T], tuple[R, Counters]], tasks: list[T], processes: int) -> tuple[list[R], Counters]:
    """The results in the order of the tasks, and what was done in all."""
    results: dict[int, R] = {}
    total = Counters()
    for number, (result, counters) in run_tasks(work, tasks, processes=processes):
        results[number] = result
        total += counters
    return [results[number] for number in range(len(tasks))], total


def _pairs(segments: Sequence[Segment]) -> Iterator[tuple[Key, Value]]:
    for key, values in merged(segments):
        yield key, next(values)


def bytes_of(given: int | str) -> int:
    """A number of bytes: 268435456, "256MB", "1.5GiB"."""
    if isinstance(given, str):
        text = given.strip().lower()
        unit = next((name for name in sorted(UNITS, key=len, reverse=True) if text.endswith(name)), "")
        try:
            found = float(text.removesuffix(unit)) * UNITS.get(unit, 1)
        except ValueError:
            raise UsageError(f"memory={given!r}: expected bytes, or a text such as 256MB") from None
    else:
        found = given
    if not found >= LEAST_MEMORY:
        raise UsageError(f"memory={given!r}: at least {LEAST_MEMORY} bytes are needed")
    return int(found)
