"""Functions of map-reduces: in a module that imports nothing heavy, for every process of one imports it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def words(line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def total(key: Any, values: Iterable[Any]) -> Any:
    return sum(values)


def squares(number: int) -> list[tuple[int, int]]:
    return [(number % 7, number * number)]


class Dying:
    """Maps or reduces as `words` and `total`, but kills its process once."""

    def __init__(self, stage: str, marker: str) -> None:
        self.stage, self.marker = stage, marker

    def _die(self, where: str) -> None:
        import os
        import signal

        if where == self.stage and not os.path.exists(self.marker):
            with open(self.marker, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)

    def words(self, line: str) -> Iterator[tuple[str, int]]:
        if line == "last":  # after all others of a task
            self._die("map")
        return words(line)

    def total(self, key: str, values: Iterable[int]) -> int:
        if key > "w0100":
            self._die("reduce")
        return sum(values)
