"""Gathers over the levels: a thread reads ahead exactly what comes next, as far as the budget allows."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial

from cordee.core.errors import WaitedTooLong
from cordee.feed.cache.future import BlockOf, Followed, Stream
from cordee.feed.cache.levels import Block, Levels
from cordee.feed.coming import Coming
from cordee.feed.permute import Ids

_END = None
"""Between the blocks of two gathers."""
_MOST = 512
"""Blocks that are ready at most, where all of them are in memory anyway."""


class Reader:
    """One who reads a source from a position on: the blocks that each gather needs, ahead of time."""

    def __init__(self, levels: Levels, coming: Coming, block_of: BlockOf) -> None:
        """Nothing is read before the first gather."""
        self._levels, self._followed = levels, Followed(coming)
        self._stream = Stream(coming, block_of, levels.origin.blocks)
        levels.open(self._stream)
        self._ready: deque[Block | None] = deque()
        self._changed = threading.Condition()
        self._busy = False
        """Whether the caller works on a block."""
        self.closed = False
        """Whether it reads no further."""
        self._failed: BaseException | None = None
        self._thread: threading.Thread | None = None

    def gathers(self, ids: Ids) -> int:
        """How many gathers these samples are that come next; 0: they are others."""
        return 0 if self.closed else self._followed.gathers(ids)

    def blocks(self, gathers: int) -> Iterator[Block]:
        """The blocks of the next gathers, one at a time: hold none of them longer than until the next.

        Fewer if the reader is closed meanwhile.
        """
        for _ in range(gathers):
            if not self._levels.cache.ahead_bytes:
                for number in self._stream.advance():
                    yield self._levels.read(number)
                continue
            while (block := self._next()) is not _END:
                yield block
                del block  # before another one is taken

    def close(self) -> None:
        """Read no further."""
        with self._changed:
            self.closed = True
            self._ready.clear()
            self._changed.notify_all()

    def _next(self) -> Block | None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cordee-ahead", daemon=True)
            self._thread.start()
        deadline = time.monotonic() + self._levels.cache.deadline_s
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not self._ready:
                if self.closed:
                    return _END
                if self._failed is not None:
                    raise self._failed
                if time.monotonic() > deadline:
                    raise WaitedTooLong(
                        f"waited {self._levels.cache.deadline_s:g} s for the next block of the store: the connection "
                        "hangs or is slow; look at it, or allow more time: Cache(deadline_s=...)"
                    )
                self._changed.wait(0.1)
            block = self._ready.popleft()
            self._busy = block is not _END
            return block

    def _run(self) -> None:
        """The thread: pass one gather after the other, as far ahead as there is memory."""
        try:
            while not self.closed:
                for number in self._stream.advance():
                    if self.closed:
                        return
                    block = self._levels.read(number, partial(self._await_room, number))
                    self._put(block)
                    del block
                self._put(_END)
        except BaseException as error:
            with self._changed:
                self._failed = None if self.closed else error
                self._changed.notify_all()

    def _put(self, block: Block | None) -> None:
        with self._changed:
            while len(self._ready) >= _MOST and not self.closed:
                self._changed.wait(1.0)
            if not self.closed:
                self._ready.append(block)
                self._changed.notify_all()

    def _await_room(self, number: int) -> None:
        """Wait until a block fits into memory, or the reader waits for it."""
        levels, nbytes = self._levels, self._levels.origin.nbytes(number)
        with self._changed:
            while (self._busy or any(self._ready) or levels.moving) and not self.closed:
                if levels.pool.in_use + nbytes <= levels.cache.memory_bytes:
                    return
                self._changed.wait(0.01)
