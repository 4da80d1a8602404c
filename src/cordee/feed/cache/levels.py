"""Blocks on their way from a far origin to the batches: looked up near to far, and kept where they are needed soonest.

A block is immutable: a step that changes rows changes a copy, and nothing is written to the origin. What memory gives
up goes to the disk, if it is needed sooner than something there; so both levels together hold what one level of their
size would. A block in memory may stay on the disk too, as long as nothing else wants the room.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

from cordee.core.errors import WaitedTooLong
from cordee.feed.cache.disk import Disk
from cordee.feed.cache.future import Future as Foresight
from cordee.feed.cache.future import Past, Ranks, Stream
from cordee.feed.cache.policy import Shelf
from cordee.feed.cache.pool import Buffer, Pool
from cordee.feed.cache.settings import Cache
from cordee.feed.counted import Counters

_COPY = 2**61
"""What a block on the disk ranks higher while memory holds it too."""


class Origin(Protocol):
    """Where blocks come from in the end."""

    @property
    def key(self) -> str:
        """A word for what all blocks hold: it differs where a block does. Part of a file's name."""
        ...

    @property
    def blocks(self) -> int:
        """How many blocks there are, numbered from 0."""
        ...

    def nbytes(self, block: int) -> int:
        """The size of a block."""
        ...

    def fetch(self, block: int, into: Buffer) -> None:
        """Get a block, which takes long; `DataError` if it cannot be had. Several threads call this."""
        ...


class Block:
    """The bytes of a block in memory; they go back to the pool when nothing refers to it any more."""

    __slots__ = ("__weakref__", "buffer", "number", "ready")

    def __init__(self, number: int, nbytes: int, pool: Pool) -> None:
        """Not filled yet."""
        self.number, self.buffer = number, pool.take(nbytes)
        self.ready: Future[None] = Future()
        """Done when `buffer` holds the block's bytes."""
        weakref.finalize(self, pool.give, self.buffer).atexit = False

    def wait(self, deadline_s: float) -> Buffer:
        """The bytes, to be read only, as long as the block is held."""
        try:
            self.ready.result(deadline_s)
        except FutureTimeout as error:
            if self.ready.done():  # an error of the origin's own
                raise
            raise WaitedTooLong(
                f"waited {deadline_s:g} s for block {self.number} of the store: the connection hangs or is slow; look "
                "at it, or allow more time: Cache(deadline_s=...)"
            ) from error
        return self.buffer


class Levels:
    """The levels of one cache over one origin, in one process."""

    def __init__(self, cache: Cache, origin: Origin) -> None:
        """Nothing is held in memory; what the folder holds of this origin is used."""
        self.cache, self.origin = cache, origin
        self.counters = Counters()
        self.pool = Pool(threshold=max(cache.ahead_bytes, cache.memory_bytes // 16))
        self._ranks: Ranks = Foresight() if cache.policy == "belady" else Past()
        self._memory: dict[int, Block] = {}
        self._shelf = Shelf(cache.memory_bytes - cache.ahead_bytes)
        self._lock = threading.RLock()
        self._counting = threading.Lock()
        # First in, first out: a reader that waits for a block in there waits for one that began before it.
        self._fetchers = ThreadPoolExecutor(cache.connections, "cordee-fetch")
        self.moving = 0
        """Blocks that are fetched just now, with what makes room for them: their memory is taken."""
        self._disk: Disk | None = None
        if cache.disk_bytes:
            self._disk = Disk(
                cache.place, cache.disk_bytes, origin.key, self._rank_on_disk, deadline_s=cache.deadline_s
            )

    def open(self, stream: Stream) -> None:
        """A reader says what it is going to read."""
        with self._lock:
            self._ranks.open(stream)

    def read(self, number: int, room: Callable[[], None] | None = None) -> Block:
        """A block: the caller waits until it is there. With `room` it is fetched by another thread.

        `room` is called before memory is taken for it, and may wait until there is some.
        """
        with self._lock:
            self._refresh()
            rank = self._ranks.use(number)
            block = self._memory.get(number)
            if block is not None:
                self._shelf.rank(number, rank)
                self.counters.count(memory_hits=1, memory_bytes=len(block.buffer))
                return block
            nbytes = self.origin.nbytes(number)
            verdict = self._shelf.decide(number, nbytes, rank)
            victims = [self._evict(victim) for victim in verdict.evict]
            if verdict.admit:
                self._shelf.put(number, nbytes, rank)
        if room is not None:
            room()
        block = Block(number, nbytes, self.pool)
        with self._lock:
            if number in self._shelf:  # it may have been evicted meanwhile
                self._memory[number] = block
        if room is None:
            self._load(block, victims)
        else:
            self._move(1)
            try:
                self._fetchers.submit(self._load, block, victims).add_done_callback(lambda task: self._move(-1))
            except RuntimeError as error:  # Python ends
                self._move(-1)
                self._abandon(block, error)
        return block

    def statistics(self) -> dict[str, Any]:
        """Counters, and what the levels hold now."""
        on_disk = {"disk_used": self._disk.used} if self._disk is not None else {}
        self.counters.damaged = self._disk.damaged if self._disk is not None else 0
        return {**self.counters.to_dict(), "memory_used": self.pool.in_use, **on_disk, "pool": self.pool.statistics()}

    def _refresh(self) -> None:
        """More is known of what comes: rank all blocks anew."""
        if self._ranks.changed():
            for one in list(self._shelf):
                self._shelf.rank(one, self._ranks.rank(one))
            if self._disk is not None:
                self._disk.rerank()

    def _evict(self, number: int) -> Block | None:
        """Give a block up in memory."""
        self._shelf.drop(number)
        self.counters.count(evicted=1)
        return self._memory.pop(number, None)

    def _demote(self, victims: list[Block | None]) -> None:
        """The disk may want what memory gave up."""
        while victims:
            block, disk = victims.pop(0), self._disk
            if block is None or disk is None:
                continue
            with contextlib.suppress(Exception):  # readers that wait for it are told
                buffer = block.wait(self.cache.deadline_s)
                if (claim := disk.claim(block.number, len(buffer))) is None:
                    disk.rerank(block.number)
                elif claim.write(buffer):
                    self.counters.count(demoted=1)

    def _load(self, block: Block, victims: list[Block | None]) -> None:
        """Fill a block, from the nearest place that has it; then its place there is free for what memory gave up."""
        try:
            self._fill(block)
        except Exception as error:
            self._abandon(block, error)
        else:
            block.ready.set_result(None)
        self._demote(victims)

    def _move(self, count: int) -> None:
        with self._counting:
            self.moving += count

    def _abandon(self, block: Block, error: Exception) -> None:
        """It cannot be had: readers that wait for it are told, and the next one that asks tries again."""
        block.ready.set_exception(error)
        with self._lock:
            if self._memory.get(block.number) is block:
                del self._memory[block.number]
                self._shelf.drop(block.number)

    def _fill(self, block: Block) -> None:
        buffer, number, disk = block.buffer, block.number, self._disk
        claim = None
        if disk is not None:
            if self._found(disk, number, buffer):
                return
            claim = disk.claim(number, len(buffer))  # before it is fetched: other processes then wait for it
            if claim is None and self._found(disk, number, buffer):  # another one was faster
                return
        began = time.perf_counter()
        try:
            self.origin.fetch(number, buffer)
        except BaseException:
            if claim is not None:
                claim.give_up()
            raise
        self.counters.count(fetched=1, fetched_bytes=len(buffer), fetched_s=time.perf_counter() - began)
        if claim is not None:
            claim.write(buffer)

    def _found(self, disk: Disk, number: int, buffer: Buffer) -> bool:
        """Whether a block was on the disk, from where it is read."""
        began = time.perf_counter()
        if not disk.read(number, buffer):
            return False
        disk.rerank(number)
        self.counters.count(disk_hits=1, disk_bytes=len(buffer), disk_s=time.perf_counter() - began)
        return True

    def _rank_on_disk(self, number: int) -> int:
        """Above all others while memory has it: then it is the first to go."""
        return self._ranks.rank(number) + (_COPY if number in self._memory else 0)
