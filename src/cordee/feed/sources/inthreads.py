"""Work on the parts of a file in a few threads, in the order of the parts: libraries below let Python go meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from cordee.core.machine import usable_cores

Part = TypeVar("Part")
Made = TypeVar("Made")

MOST = 4
"""Threads for one file: so many results, and one more, are in memory at a time."""


def in_threads(work: Callable[[Part], Made], parts: Iterable[Part]) -> Iterator[Made]:
    """What `work` makes of each part, in their order; an error comes where its part stands."""
    threads = min(MOST, len(usable_cores()))
    coming: deque[Future[Made]] = deque()
    iterator, error = iter(parts), None
    with ThreadPoolExecutor(threads, "rows") as pool:
        try:
            while error is None:
                try:
                    coming.append(pool.submit(work, next(iterator)))
                except StopIteration:
                    break
                except Exception as problem:  # after what came before it
                    error = problem
                if len(coming) > threads:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for one in coming:
                one.cancel()
    if error is not None:
        raise error
