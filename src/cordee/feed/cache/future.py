"""When a block is needed next: read off the order of a training, which is known before it begins.

A stream is what one reader is going to ask for. Its gathers lie one after the other, and a time is a place in that row
of samples. Known is a window: two stretches, which are the epoch at hand and the next one unless an epoch has more than
`AT_ONCE` samples per reader. As every epoch reads each block, that is all that Belady's choice asks for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cordee.feed.cache.policy import NEVER
from cordee.feed.coming import Coming, Stretch
from cordee.feed.permute import Ids

_DEEPER = 2**48
"""What the reads of an outer reader, which waits for an inner one to end, come later."""
BlockOf = Callable[[Ids], Ids]
"""The blocks of samples."""


class Followed:
    """What a reader really asks for, beside what it said that it would."""

    def __init__(self, coming: Coming) -> None:
        """Nothing was asked for."""
        self._stretches: Iterator[Stretch] = coming.stretches()
        self._stretch = next(self._stretches)
        self._gather = 0

    def gathers(self, ids: Ids) -> int:
        """How many of the next gathers these samples are, put together, and passes them; 0: they are something else."""
        if self._gather == len(self._stretch.ends):
            self._stretch, self._gather = next(self._stretches), 0
        ends = self._stretch.ends
        start = int(ends[self._gather - 1]) if self._gather else 0
        stop = start + len(ids)
        last = int(np.searchsorted(ends[self._gather :], stop)) + self._gather
        if last == len(ends) or ends[last] != stop or not np.array_equal(self._stretch.ids[start:stop], ids):
            return 0
        count, self._gather = last + 1 - self._gather, last + 1
        return count


class Stream:
    """The reads of one reader as blocks: what comes next, and when each block is needed after that."""

    def __init__(self, coming: Coming, block_of: BlockOf, blocks: int) -> None:
        """`block_of` gives the blocks of samples, of which there are so many `blocks`."""
        self._block_of = block_of
        self._stretches: Iterator[Stretch] = coming.stretches()
        self._blocks = np.zeros(0, np.int64)  # of each sample in the window
        self._after = np.zeros(0, np.int64)  # and the time at which its block comes again
        self._ends = np.zeros(0, np.int64)  # of gathers, in the window
        self._gather = 0  # the next one, in the window
        self._second = 0  # where the second stretch of the window begins
        self._start = 0  # the time at which the window begins
        self.next_of: NDArray[np.int64] = np.full(blocks, NEVER, np.int64)
        """The time of the next read of each block; at least `NEVER` where it is not known."""
        self.grown = 0
        """How often more of the future became known."""
        self._grow()
        self._grow()

    def advance(self) -> Iterator[int]:
        """Pass the next gather: its blocks, in the order in which it first needs them. Costs a sort of its samples.

        When a block comes, `next_of` tells when it comes again. To be gone through to the end.
        """
        if self._passed >= self._second:
            self._grow()
        start, stop = self._passed, int(self._ends[self._gather])
        blocks = self._blocks[start:stop]
        found, first = np.unique(blocks, return_index=True)
        _, last = np.unique(blocks[::-1], return_index=True)
        turn = np.argsort(first)
        self._gather += 1
        for number, after in zip(found[turn].tolist(), self._after[stop - 1 - last[turn]].tolist(), strict=True):
            self.next_of[number] = after
            yield number

    @property
    def _passed(self) -> int:
        return int(self._ends[self._gather - 1]) if self._gather else 0

    def _grow(self) -> None:
        """Forget the stretch that was passed, and look at one more. Costs a sort of two stretches."""
        passed, stretch = self._passed, next(self._stretches)
        self._start += passed
        blocks = self._blocks[passed:]
        self._second = len(blocks)
        self._ends = np.concatenate([self._ends[self._gather :] - passed, stretch.ends + len(blocks)])
        self._gather = 0
        self._blocks = np.concatenate([blocks, self._block_of(stretch.ids)])
        order = np.argsort(self._blocks, kind="stable")
        ranked = self._blocks[order]
        same = ranked[1:] == ranked[:-1]
        times = order + self._start
        self._after = np.full(len(order), NEVER, np.int64)
        self._after[order[:-1][same]] = times[1:][same]
        first = np.concatenate([np.ones(min(1, len(order)), bool), ~same])
        self.next_of.fill(NEVER)
        self.next_of[ranked[first]] = times[first]
        self.grown += 1


class Ranks(Protocol):
    """By what a level chooses: the block of the highest rank is evicted first."""

    def open(self, stream: Stream) -> None:
        """One more reader says what it is going to read."""
        ...

    def changed(self) -> bool:
        """Whether the ranks of all blocks may have changed since the last call."""
        ...

    def use(self, block: int) -> int:
        """A block is read now: its rank from here on."""
        ...

    def rank(self, block: int) -> int:
        """The rank of a block."""
        ...


class Future:
    """By when a block is needed next. An inner reader, such as an evaluation, reads while the outer ones wait."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._open: list[weakref.ref[Stream]] = []
        self._seen: list[tuple[int, int]] = []
        self._clock = 0
        self._used: dict[int, int] = {}

    def open(self, stream: Stream) -> None:
        """It counts as long as the stream is held somewhere."""
        self._open.append(weakref.ref(stream))

    def changed(self) -> bool:
        """When a reader came or went, or more is known of what one reads."""
        seen = [(id(stream), stream.grown) for stream in self._streams()]
        changed, self._seen = seen != self._seen, seen
        self._open = [one for one in self._open if one() is not None]
        return changed

    def use(self, block: int) -> int:
        """Remember that it was used, for what is not known."""
        self._clock += 1
        self._used[block] = self._clock
        return self.rank(block)

    def rank(self, block: int) -> int:
        """The time of the next read; where that is not known, what was used longest ago ranks highest."""
        for depth, stream in enumerate(self._streams()):
            at = int(stream.next_of[block])
            if at < NEVER:
                return at + depth * _DEEPER
        return 2 * NEVER - self._used.get(block, 0)

    def _streams(self) -> Iterator[Stream]:
        """The innermost first."""
        return (stream for one in reversed(self._open) if (stream := one()) is not None)


class Past:
    """By when a block was used last: LRU."""

    def __init__(self) -> None:
        """Nothing was used."""
        self._clock = 0
        self._used: dict[int, int] = {}

    def open(self, stream: Stream) -> None:
        """What comes makes no difference."""

    def changed(self) -> bool:
        """Only by uses."""
        return False

    def use(self, block: int) -> int:
        """From here on it is the one used last."""
        self._clock += 1
        self._used[block] = self._clock
        return -self._clock

    def rank(self, block: int) -> int:
        """The longer ago its last use is, the higher."""
        return -self._used.get(block, 0)
