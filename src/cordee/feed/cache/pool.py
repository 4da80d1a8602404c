"""Memory that is used again: buffers of blocks that came and went."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[np.uint8]


class Pool:
    """Buffers that were given back, for the next request of the same size.

    What is in use is never freed. Idle buffers are kept until they are more than `threshold` bytes. Those that were
    idle longest are then marked, and given back to the system at the next request, which may still take one of them.
    """

    def __init__(self, threshold: int) -> None:
        """Allocate nothing yet."""
        self.threshold = threshold
        self.in_use = 0
        """Bytes of buffers that were taken and not given back."""
        self.idle = 0
        """Bytes of buffers that wait for the next request."""
        self.made = self.reused = self.freed = 0
        """How many buffers were allocated, taken again, and given back to the system."""
        self._free: OrderedDict[int, Buffer] = OrderedDict()  # by a number that grows: who was idle longest is first
        self._sizes: dict[int, list[int]] = {}  # bytes → numbers of idle buffers
        self._marked: list[int] = []
        self._number = 0
        self._lock = threading.RLock()  # a buffer may come back while another one is asked for, in the same thread

    def take(self, nbytes: int) -> Buffer:
        """A buffer of so many bytes, with whatever is in there."""
        with self._lock:
            numbers = self._sizes.get(nbytes)
            found = self._forget(numbers[-1]) if numbers else None
            for number in self._marked:
                if number in self._free:
                    self._forget(number)
                    self.freed += 1
            self._marked.clear()
            self.in_use += nbytes
            if found is not None:
                self.reused += 1
                return found
            self.made += 1
        return np.empty(nbytes, np.uint8)

    def give(self, buffer: Buffer) -> None:
        """It is not in use any more: no view of it may be left."""
        with self._lock:
            nbytes = buffer.nbytes
            self.in_use -= nbytes
            self.idle += nbytes
            self._free[self._number] = buffer
            self._sizes.setdefault(nbytes, []).append(self._number)
            self._number += 1
            self._mark()

    def statistics(self) -> dict[str, Any]:
        """Its counters by name."""
        return {name: getattr(self, name) for name in ("in_use", "idle", "made", "reused", "freed")}

    def _mark(self) -> None:
        """Mark those that were idle longest, until the others are within the threshold."""
        over = self.idle - self.threshold - sum(self._free[one].nbytes for one in self._marked if one in self._free)
        marked = set(self._marked)
        for number, buffer in self._free.items():
            if over <= 0:
                break
            if number not in marked:
                self._marked.append(number)
                over -= buffer.nbytes

    def _forget(self, number: int) -> Buffer:
        buffer = self._free.pop(number)
        self.idle -= buffer.nbytes
        self._sizes[buffer.nbytes].remove(number)
        return buffer
