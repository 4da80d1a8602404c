"""The split of `core.times.TimeSplit`, for whole blocks of steps: a report of a long run is made of millions of them.

The rule is that of `core.times.split_step`, and `tests/unit/test_split.py` holds the two side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cordee.core.times import callbacks_of

MOST_OPEN = 20_000
"""Steps that may wait for a worker's report; older ones are closed with those that came."""
_NAMES = ("data_ms", "compute_ms", "blocked_ms", "waited_ms", "samples", "arrived")
"""Before the times of callbacks, which records of former versions have not."""


@dataclass(frozen=True)
class Block:
    """Some consecutive steps of one worker, an entry a step; times in milliseconds."""

    data: list[float]
    compute: list[float]
    communication: list[float]
    waiting: list[float]
    samples: list[int]
    arrived: list[float]
    """In seconds, by the launcher's clock."""
    waited: list[float]
    """The part of `waiting` that lies before the arrival, within the passes."""
    callbacks: list[float]

    def cut(self, begin: int, end: int) -> Block:
        """Some of its steps, by their places in it."""
        return Block(*(getattr(self, name)[begin:end] for name in self.__dataclass_fields__))

    def without_start(self, early_s: float) -> Block:
        """The same, but that its first step begins `early_s` later, as far as it waited anyway."""
        return replace(self, waiting=[max(0.0, self.waiting[0] - 1e3 * early_s), *self.waiting[1:]])

    @property
    def began(self) -> float:
        """When the first of its steps began, in the launcher's clock; see `core.times`."""
        return self.arrived[0] - (self.data[0] + self.compute[0] + self.callbacks[0] + self.waited[0]) / 1e3


OnBlock = Callable[[int, Mapping[int, Block]], None]
"""Called with the number of the block's first step (from 0) and the block of each worker."""


class _Chunk:
    """What a worker reported at once: columns in the order of `_NAMES`."""

    __slots__ = ("columns", "end", "first")

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.first: int = record["from"]
        self.columns: list[list[Any]] = [*(record[name] for name in _NAMES), callbacks_of(record)]
        self.end = self.first + min(map(len, self.columns))

    def cut(self, first: int, end: int) -> list[list[Any]]:
        if first == self.first and end == self.end:
            return self.columns
        return [column[first - self.first : end - self.first] for column in self.columns]


class BlockSplit:
    """Tells waiting from communication in `times` records, block by block."""

    def __init__(self, on_block: OnBlock) -> None:
        """Nothing yet."""
        self._on_block = on_block
        self._members: frozenset[int] = frozenset()
        self._chunks: dict[int, deque[_Chunk]] = {}
        self._ends: dict[int, int] = {}
        """The step after the last one that each worker reported."""

    def expect(self, workers: Iterable[int]) -> None:
        """From here on these are the workers of a step; what a lost one did not report will not come any more."""
        self._members = frozenset(workers)
        self._close_common()

    def add(self, worker: int, record: Mapping[str, Any]) -> None:
        """One worker's times of some consecutive steps."""
        chunk = _Chunk(record)
        self._chunks.setdefault(worker, deque()).append(chunk)
        self._ends[worker] = chunk.end
        self._close_common()
        open_from = min((chunks[0].first for chunks in self._chunks.values() if chunks), default=chunk.end)
        if chunk.end - open_from > MOST_OPEN:
            self._close(chunk.end - MOST_OPEN)

    def finish(self) -> None:
        """Close what is still open with those that came."""
        self._close(max(self._ends.values(), default=0))

    def _close_common(self) -> None:
        """Close the steps that all members have reported."""
        if self._members and self._members <= self._ends.keys():
            self._close(min(self._ends[worker] for worker in self._members))

    def _close(self, until: int) -> None:
        """Close the steps below `until`, in pieces within which the same workers have reported."""
        waiting = [chunks for chunks in self._chunks.values() if chunks and chunks[0].first < until]
        while waiting:
            first = min(chunks[0].first for chunks in waiting)
            bounds = {chunks[0].end for chunks in waiting} | {chunks[0].first for chunks in waiting} | {until}
            end = min(bound for bound in bounds if bound > first)
            came = {}
            for worker, chunks in self._chunks.items():
                if chunks and chunks[0].first == first:
                    came[worker] = chunks[0].cut(first, end)
                    self._shorten(chunks, end)
            self._on_block(first, split_block(came))
            waiting = [chunks for chunks in self._chunks.values() if chunks and chunks[0].first < until]

    @staticmethod
    def _shorten(chunks: deque[_Chunk], end: int) -> None:
        """Take the steps below `end` off the first chunk."""
        chunk = chunks[0]
        if chunk.end <= end:
            chunks.popleft()
        else:
            chunk.columns = chunk.cut(end, chunk.end)
            chunk.first = end


def split_block(came: Mapping[int, list[list[Any]]]) -> dict[int, Block]:
    """Tell waiting from communication; the last one to come tells them apart."""
    arrivals = [columns[5] for columns in came.values()]
    lasts = list(map(max, *arrivals)) if len(arrivals) > 1 else arrivals[0]
    split = {}
    for worker, (data, compute, blocked, waited, samples, arrived, callbacks) in came.items():
        waiting = [
            known + max(0.0, min(whole - known, (last - mine) * 1e3))
            for whole, known, last, mine in zip(blocked, waited, lasts, arrived)  # noqa: B905 - of equal length
        ]
        communication = [whole - waits for whole, waits in zip(blocked, waiting)]  # noqa: B905
        split[worker] = Block(data, compute, communication, waiting, samples, arrived, waited, callbacks)
    return split
