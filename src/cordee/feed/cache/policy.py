"""What a level of a cache keeps: a verdict is a value, made of what is held and when it is needed again.

Belady's choice is the best there is: what is needed last goes first, and what will not be needed before anything that
is held is not taken in. It needs the future, which a training knows: see `future.py`. With LRU, what was used longest
ago goes first. Both are one rule, "the highest rank goes first", over two ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

POLICIES = ("belady", "lru")
"""By which a level chooses what it keeps."""
NEVER = 2**60
"""From this rank on, it is not known when a block is needed again."""


class Verdict(NamedTuple):
    """What becomes of a block that comes to a level."""

    admit: bool
    evict: tuple[int, ...] = ()
    """Blocks that make room for it, the one with the highest rank first."""


class Shelf:
    """What one level holds: blocks, their sizes and their ranks, of which the highest is evicted first.

    A verdict costs the logarithm of what is held. Blocks of equal rank are evicted by their number.
    """

    def __init__(self, budget: int) -> None:
        """Empty, for at most `budget` bytes."""
        self.budget = budget
        self.used = 0
        self._held: dict[int, tuple[int, int]] = {}  # block → bytes, rank
        self._heap: list[tuple[int, int]] = []  # (-rank, block); of a block only the entry with its present rank counts

    def __contains__(self, block: int) -> bool:
        """Whether it is held."""
        return block in self._held

    def __len__(self) -> int:
        """How many blocks are held."""
        return len(self._held)

    def __iter__(self) -> Iterator[int]:
        """The blocks, in no order."""
        return iter(self._held)

    def decide(self, block: int, nbytes: int, rank: int) -> Verdict:
        """Whether a block that is not held is to be taken in, and what has to go for it. Changes nothing."""
        if nbytes > self.budget:
            return Verdict(False)
        need = self.used + nbytes - self.budget
        popped: list[tuple[int, int]] = []
        victims: list[int] = []
        while need > 0 and self._heap:
            entry = heapq.heappop(self._heap)
            if not self._counts(entry) or popped[-1:] == [entry]:
                continue
            popped.append(entry)
            if -entry[0] <= rank:
                break
            victims.append(entry[1])
            need -= self._held[entry[1]][0]
        for entry in popped:
            heapq.heappush(self._heap, entry)
        return Verdict(True, tuple(victims)) if need <= 0 else Verdict(False)

    def put(self, block: int, nbytes: int, rank: int) -> None:
        """Hold a block, or give one that is held another rank."""
        if block in self._held:
            self.used -= self._held[block][0]
        self._held[block] = nbytes, rank
        self.used += nbytes
        heapq.heappush(self._heap, (-rank, block))
        if len(self._heap) > 4 * len(self._held) + 64:  # entries that no longer count
            self._heap = [(-rank, block) for block, (_, rank) in self._held.items()]
            heapq.heapify(self._heap)

    def rank(self, block: int, rank: int) -> None:
        """Give a block another rank, if it is held."""
        if (held := self._held.get(block)) is not None and held[1] != rank:
            self.put(block, held[0], rank)

    def drop(self, block: int) -> None:
        """Hold it no more."""
        nbytes, _ = self._held.pop(block, (0, 0))
        self.used -= nbytes

    def _counts(self, entry: tuple[int, int]) -> bool:
        held = self._held.get(entry[1])
        return held is not None and held[1] == -entry[0]
