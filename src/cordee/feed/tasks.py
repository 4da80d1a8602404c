"""Tasks in several processes: each is done once, and again where its process dies."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from cordee.core import interrupts
from cordee.core.errors import CordeeError, WaitedTooLong, WorkerFailed, WorkersLost, WorkerTraceback
from cordee.core.interpreter import python_module
from cordee.core.machine import usable_cores
from cordee.feed.taskwire import DONE, FAILED, NOTICE, Hear, heard, packed, receive, send, unpacked
from cordee.feed.threads import tasks_in_threads

T = TypeVar("T")
R = TypeVar("R")

LOOK_S = 0.25
"""Between two looks for signals and for processes that are silent."""
END_S = 2.0
"""What a process may take to end when there is no task left."""
_LONGEST_NAME = 120


def run_tasks(
    work: Callable[[T], R],
    tasks: Sequence[T],
    *,
    processes: int,
    threads: int = 1,
    tries: int = 3,
    deadline_s: float = 3600.0,
    notice: Hear | None = None,
    keep_open: Sequence[int] = (),
) -> Iterator[tuple[int, R]]:
    """Each task's number and result, in any order; `processes=0` runs them in this process, in so many threads.

    A process that dies has its task run again by another, at most `tries` times. An exception of a task ends all of
    them and is raised here. What a task reports (`taskwire.report`) goes to `notice`; one that neither ends nor reports
    anything for `deadline_s` is an error too. The processes also hold the descriptors `keep_open`, of a lock for
    instance, until they end.
    """
    if processes < 1 and threads > 1:
        yield from tasks_in_threads(work, tasks, threads, notice)
        return
    if processes < 1:
        for number, task in enumerate(tasks):
            with heard(notice):
                result = work(task)
            yield number, result
        return
    pool = _Pool(work, tasks, tries, deadline_s, notice, keep_open)
    calm = False
    try:
        yield from pool.results(processes)
        calm = True
    finally:
        pool.close(calm)


class _Child:
    """One process, and the task that it has."""

    def __init__(self, keep_open: Sequence[int], threads: int, deadline_s: float) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(deadline_s)  # one that was stopped in the middle of a message
        command = python_module("cordee.feed.taskprocess", str(theirs.fileno()), str(os.getpid()), str(threads))
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno(), *keep_open],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the caller alone
            env={"OMP_NUM_THREADS": str(threads), **os.environ},  # pyarrow's threads too
        )
        theirs.close()
        self.task: int | None = None
        self.since = time.monotonic()

    def give(self, raw: bytes) -> None:
        """Send it a message; whether it still lives is seen when it is listened to."""
        self.since = time.monotonic()
        with contextlib.suppress(ConnectionError):
            send(self.sock, raw)

    def end(self, calm: bool) -> str:
        """End it, and say how it ended."""
        if calm:
            self.give(b"")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        self.sock.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.0 if calm else LOOK_S)
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class _Pool(Generic[T, R]):
    """The processes, and the tasks that wait for one."""

    def __init__(
        self,
        work: Callable[[T], R],
        tasks: Sequence[T],
        tries: int,
        deadline_s: float,
        notice: Hear | None,
        keep_open: Sequence[int],
    ) -> None:
        self._opening = packed(sys.path, "the search path"), packed(work, "the work")
        self._tasks, self._tries, self._deadline_s = tasks, tries, deadline_s
        self._notice, self._keep_open = notice, keep_open
        self._waiting = deque(range(len(tasks)))
        self._deaths = [0] * len(tasks)
        self._children: list[_Child] = []

    def results(self, processes: int) -> Iterator[tuple[int, R]]:
        """All of them."""
        left, processes = len(self._tasks), min(processes, len(self._tasks))
        threads = max(1, len(usable_cores()) // max(1, processes))
        while left:
            missing = min(processes - len(self._children), len(self._waiting))
            begun = [_Child(self._keep_open, threads, self._deadline_s) for _ in range(missing)]
            self._children += begun
            for child in begun:  # all of them start at the same time
                for raw in self._opening:
                    child.give(raw)
                self._next(child)
            for child in self._ready():
                kind, number, value = self._heard(child)
                if kind == FAILED:
                    raise _error_of(*value)
                if kind == NOTICE and self._notice is not None:
                    self._notice(value)
                if kind == DONE:
                    child.task = None
                    self._next(child)  # before the caller deals with this one
                    left -= 1
                    yield number, value

    def close(self, calm: bool) -> None:
        """End the processes; calm: they have nothing left to do."""
        for child in self._children:
            if not calm:
                child.process.kill()
        for child in self._children:
            child.end(calm)
        self._children.clear()

    def _next(self, child: _Child) -> None:
        if self._waiting:
            child.task = self._waiting.popleft()
            child.give(packed((child.task, packed(self._tasks[child.task], "a task")), "a task"))

    def _ready(self) -> list[_Child]:
        """Those that have something to say, or are gone."""
        with selectors.DefaultSelector() as watched:
            for child in self._children:
                watched.register(child.sock, selectors.EVENT_READ, child)
            ready: list[_Child] = [key.data for key, _ in watched.select(LOOK_S)]
        interrupts.check()
        for child in self._children:
            if child.task is not None and time.monotonic() - child.since > self._deadline_s:
                raise WaitedTooLong(self._silence(child.task))
        return ready

    def _heard(self, child: _Child) -> tuple[str, int, Any]:
        child.since = time.monotonic()
        try:
            message = receive(child.sock)
        except TimeoutError as error:
            raise WaitedTooLong(self._silence(child.task or 0)) from error
        if message is not None:
            kind, number, value = unpacked(message)
            return kind, number, value
        self._children.remove(child)
        how = child.end(calm=False)
        if (number := child.task) is not None:
            self._deaths[number] += 1
            if self._deaths[number] >= self._tries:
                memory = (
                    ": most often memory ran out; use fewer processes, or smaller pieces" if "SIGKILL" in how else ""
                )
                raise WorkersLost(
                    f"{self._named(number)} was given up: the process that worked on it died {self._tries} times, at "
                    f"last {how}{memory}"
                )
            self._waiting.appendleft(number)
        return "", -1, None

    def _silence(self, number: int) -> str:
        return (
            f"{self._named(number)} has given no sign for {self._deadline_s:g} s: its process hangs or is very slow; "
            "look at the storage that it reads, and at functions of your own that it calls"
        )

    def _named(self, number: int) -> str:
        name = str(self._tasks[number])
        return f"task {number} ({name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + '...'})"


def _error_of(raw: bytes, told: str) -> BaseException:
    """The exception of a task; its traceback is shown as the cause."""
    error: BaseException | None = None
    with contextlib.suppress(Exception):
        error = unpacked(raw) if raw else None
    if error is None or isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
        return WorkerFailed(f"a task failed: {told.strip().rpartition(chr(10))[2]}", traceback=told)
    if not isinstance(error, CordeeError):
        error.__cause__ = WorkerTraceback(told)
    return error
