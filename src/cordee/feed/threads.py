"""Work in threads of this process: for libraries that let other threads of Python go on meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from cordee.core import interrupts
from cordee.core.machine import usable_cores
from cordee.feed.taskwire import DONE, FAILED, NOTICE, Hear, heard

Part = TypeVar("Part")
Made = TypeVar("Made")

MOST = 4
"""Threads at a time: so many results, and one more, are in memory. More of them would wait for Python's lock."""
LOOK_S = 0.25
"""Between two looks for signals."""


class _Mine(threading.local):
    """What this thread may use."""

    threads = MOST


_mine = _Mine()


class _Stopped(Exception):
    """No thread waits for the result any more."""


def use_threads(count: int) -> None:
    """Let what the calling thread does in threads from now on use so many."""
    _mine.threads = count


def threads_here() -> int:
    """How many threads the calling one may use."""
    return min(_mine.threads, len(usable_cores()))


def in_threads(work: Callable[[Part], Made], parts: Iterable[Part]) -> Iterator[Made]:
    """What `work` makes of each part, in their order; an error comes where its part stands."""
    threads = threads_here()
    if threads < 2:
        yield from map(work, parts)
        return
    coming: deque[Future[Made]] = deque()
    iterator, error = iter(parts), None
    with ThreadPoolExecutor(threads, "rows", use_threads, (1,)) as pool:
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


def ahead(parts: Iterator[Part]) -> Iterator[Part]:
    """The same ones: while one of them is used, another thread makes the next."""
    if len(usable_cores()) < 2:
        yield from parts
        return
    none: Any = object()
    with ThreadPoolExecutor(1, "ahead", use_threads, (_mine.threads,)) as pool:
        coming = pool.submit(next, parts, none)
        while (part := coming.result()) is not none:
            coming = pool.submit(next, parts, none)
            yield part


def tasks_in_threads(
    work: Callable[[Part], Made], tasks: Sequence[Part], threads: int, notice: Hear | None
) -> Iterator[tuple[int, Made]]:
    """Each task's number and result, in any order; `notice` and the results are the calling thread's.

    An exception ends all: the other tasks stop where they next report something.
    """
    came: SimpleQueue[tuple[str, int, Any]] = SimpleQueue()
    stopped = threading.Event()

    def tell(value: Any) -> None:
        if stopped.is_set():
            raise _Stopped
        came.put((NOTICE, -1, value))

    def run(number: int) -> None:
        try:
            with heard(tell):
                came.put((DONE, number, work(tasks[number])))
        except BaseException as error:
            came.put((FAILED, number, error))

    each = max(1, len(usable_cores()) // threads)
    pool = ThreadPoolExecutor(threads, "tasks", use_threads, (each,))
    try:
        left = len([pool.submit(run, number) for number in range(len(tasks))])
        while left:
            interrupts.check()
            with contextlib.suppress(Empty):
                kind, number, value = came.get(timeout=LOOK_S)
                if kind == FAILED:
                    raise value
                if kind == NOTICE and notice is not None:
                    notice(value)
                if kind == DONE:
                    left -= 1
                    yield number, value
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
