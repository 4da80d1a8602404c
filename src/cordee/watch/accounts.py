"""What workers report of their steps, set against what was committed: a lost worker takes its last reports with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from cordee.core.events import TimesEvent
from cordee.core.times import MOST_OPEN, Block, Breakdown, without_start


class Piece(NamedTuple):
    """Some consecutive steps of one start, as far as workers reported them."""

    first: int
    """Its first step, from 0."""
    blocks: Mapping[int, Block]
    whole: bool
    """Whether no report is missing."""


class Missing(NamedTuple):
    """Steps of which some workers' reports never came."""

    present: frozenset[int]
    """Workers that were there and so took part in them; with how many samples each is not known."""
    lost: frozenset[int]
    """Lost workers of which at least one took part in them."""
    steps: int
    samples: int
    """What these steps held beyond what others reported."""

    @property
    def only(self) -> bool:
        """Whether it is one worker's reports that are missing: then it is known what they would have said."""
        return len(self.present) + len(self.lost) == 1


class Accounts:
    """The reports of one start of a run, in the order of its steps."""

    def __init__(
        self, workers: Iterable[int], on_piece: Callable[[Piece], None], on_missing: Callable[[Missing], None]
    ) -> None:
        """Nothing was committed yet; these workers take part."""
        self._on_piece, self._on_missing = on_piece, on_missing
        self._committed: dict[int, int] = {}
        """Samples of steps that workers have not reported yet."""
        self._last = 0
        self._waiting: deque[tuple[int, Mapping[int, Block]]] = deque()
        """Reports of steps whose commitment is not on record yet: the worker that records it may have been lost."""
        self._lost: set[int] = set()
        self._doubtful: set[int] = set()
        """Those of the lost that may have taken part in the steps to come."""
        self.ready: float | None = None
        """When the last worker was ready for its first step, in the launcher's clock; None before that is known."""
        self._breakdown = Breakdown(self._on_block)
        self.expect(workers)

    def expect(self, workers: Iterable[int]) -> None:
        """From here on these take part."""
        self._members = frozenset(workers)
        self._breakdown.expect(self._members)

    def lose(self, worker: int) -> None:
        """A worker is gone; what it did not report will not come any more."""
        self._lost.add(worker)
        self._doubtful.add(worker)

    def commit(self, step: int, samples: int) -> None:
        """A step was committed, the one with this number from 1."""
        if len(self._committed) > MOST_OPEN:
            self._committed.clear()
        self._committed[step - 1] = samples
        self._last = step
        while self._waiting and _end(*self._waiting[0]) <= step:
            self._enter(*self._waiting.popleft())

    def report(self, event: TimesEvent) -> None:
        """One worker's times of some consecutive steps."""
        self._breakdown.add(event)

    def finish(self) -> None:
        """Nothing more will come."""
        self._breakdown.finish()
        while self._waiting:
            self._enter(*self._waiting.popleft())
        if self._committed:  # the run was killed before any worker reported them
            lost = frozenset(self._doubtful)
            present = self._members - self._lost
            self._on_missing(Missing(present, lost, len(self._committed), sum(self._committed.values())))
            self._committed.clear()

    def _on_block(self, first: int, blocks: Mapping[int, Block]) -> None:
        if self.ready is None:
            self.ready = max(block.began for block in blocks.values())
            blocks = without_start(blocks)
        if self._waiting or _end(first, blocks) > self._last:
            self._waiting.append((first, blocks))
        else:
            self._enter(first, blocks)

    def _enter(self, first: int, blocks: Mapping[int, Block]) -> None:
        for piece, missing in self._pieces(first, blocks):
            self._on_piece(piece)
            if piece.whole:
                self._doubtful &= blocks.keys()
                continue
            present = frozenset(self._members - self._lost - blocks.keys())
            lost = frozenset(self._doubtful - blocks.keys() or (() if present else self._lost - blocks.keys()))
            if present or lost:
                self._on_missing(Missing(present, lost, _end(piece.first, piece.blocks) - piece.first, missing))

    def _pieces(self, first: int, blocks: Mapping[int, Block]) -> Iterator[tuple[Piece, int]]:
        """The block in parts that are whole and parts that are not, and how many samples each lacks."""
        committed = [self._committed.pop(step, 0) for step in range(first, _end(first, blocks))]
        if sum(sum(block.samples) for block in blocks.values()) >= sum(committed):
            yield Piece(first, blocks, whole=True), 0
            return
        reported = map(sum, zip(*(block.samples for block in blocks.values()), strict=False))
        lacks = [max(0, whole - came) for whole, came in zip(committed, reported, strict=False)]
        for lacking, places in groupby(range(len(lacks)), lambda place: lacks[place] > 0):
            run = list(places)
            begin, end = run[0], run[-1] + 1
            cut = {worker: block.cut(begin, end) for worker, block in blocks.items()}
            yield Piece(first + begin, cut, whole=not lacking), sum(lacks[begin:end])


def _end(first: int, blocks: Mapping[int, Block]) -> int:
    """The step after the last one of these."""
    return first + len(next(iter(blocks.values())).samples)
