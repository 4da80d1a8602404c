"""Ctrl-C, SIGTERM, a batch system's notice (SIGUSR1), a closed terminal (SIGHUP): from first to last line of a command.

A handler may run between any two instructions, and Python drops what it raises in some of them (hooks of a fork,
finalizers). So while a run is made, watched and ended, signals are counted, and heeded where it can end in good order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from cordee.core.errors import Interrupted

EARLY = "stopped before the training began"


@dataclass
class Interrupts:
    """The signals that have asked this process to stop."""

    count: int = 0
    numbers: list[int] = field(default_factory=list)
    """Which ones."""
    wake: Callable[[], None] = lambda: None
    """Called by the handler: it may do no more than put a word into a queue."""


_counting: Interrupts | None = None


@contextlib.contextmanager
def held() -> Iterator[None]:
    """A signal that comes within is dealt with at the end; only the main thread of a program hears any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    try:
        with handled(lambda number, frame: came.append(number)):
            yield
    finally:
        for one in came[:1]:
            signal.raise_signal(one)


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """`handler` takes the signals that ask this process to stop, until the end of the block."""
    before = _handle(handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextlib.contextmanager
def counted() -> Iterator[Interrupts]:
    """Count the signals instead of ending by them; only the main thread of a program may say so.

    Within another `counted` these are the same, so that what comes after a run is not cut short either.
    """
    global _counting
    if threading.current_thread() is not threading.main_thread() or _counting is not None:
        yield _counting or Interrupts()
        return
    found = Interrupts()

    def count(number: int, frame: object) -> None:
        found.count += 1
        found.numbers.append(number)
        found.wake()

    _counting = found
    with handled(count):
        try:
            yield found
        finally:
            _counting = None


def check() -> None:
    """Raise `Interrupted` if a signal was counted; what waits before the training asks several times a second."""
    if _counting is not None and _counting.count:
        raise Interrupted(EARLY)


def end_at_once() -> None:
    """A signal ends this process with one message: while it imports, nothing is made that had to be removed."""

    def end(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed
            os.write(2, f"cordee: {EARLY}\n".encode())
        os._exit(Interrupted.code)

    _handle(end)


def raise_at_once() -> None:
    """A signal raises `KeyboardInterrupt`, as Ctrl-C does in any Python program."""
    _handle(signal.default_int_handler)


def leave(code: int) -> None:
    """End with this exit code, which no signal changes any more: it only hastens the end."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _handle(lambda number, frame: os._exit(code))
    sys.exit(code)


def _handle(handler: Any) -> dict[signal.Signals, Any]:
    """Install it; returns the handlers before. Under `nohup` SIGHUP is ignored, and stays so."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return {number: signal.signal(number, handler) for number in numbers}
