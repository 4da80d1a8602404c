"""Forward passes that are computed twice: what the first one agreed on with other workers, the second takes from it.

Recomputed activations (`split/recompute.py`) run the code of a block again in the backward pass. What it computed by
`once` the first time (statistics of the global batch, say) is not computed again, and changes nothing again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_open = threading.local()


class Tape:
    """What `once` gave in a forward pass, in order."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._values: list[Any] = []
        self._next = 0

    def take(self, compute: Callable[[], T]) -> T:
        """The next value; computed where the pass has not come so far before."""
        if self._next == len(self._values):
            self._values.append(compute())
        self._next += 1
        value: T = self._values[self._next - 1]
        return value

    @contextmanager
    def playing(self) -> Iterator[None]:
        """A pass from the beginning, in this thread: on a GPU, backward passes have their own."""
        before, self._next = getattr(_open, "tape", None), 0
        _open.tape = self
        try:
            yield
        finally:
            _open.tape = before


def once(compute: Callable[[], T]) -> T:
    """What `compute` gives; if this pass repeats another, what it gave there."""
    tape: Tape | None = getattr(_open, "tape", None)
    return compute() if tape is None else tape.take(compute)
