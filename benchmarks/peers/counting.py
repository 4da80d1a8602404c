"""What counts words, in a module that imports nothing heavy: every process of a map-reduce imports it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator


def words(line: str) -> Iterator[tuple[str, int]]:
    """A pair for each word."""
    for word in line.split():
        yield word, 1


def total(key: str, counts: Iterable[int]) -> int:
    """How often a word came."""
    return sum(counts)


class Dying:
    """As `words`, but the first process that comes to a line `last` is killed there."""

    def __init__(self, marker: str) -> None:
        """`marker` is a file that tells whether one was killed."""
        self._marker = marker

    def words(self, line: str) -> Iterator[tuple[str, int]]:
        """A pair for each word."""
        if line == "last" and not os.path.exists(self._marker):
            with open(self._marker, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return words(line)
