"""Sums and gathers among the members of one host, through memory that they share: no socket, no thread.

Every member has an arena. To begin a sum it copies its tensor there and says so (`post`); to end it, it waits until
all have said so and adds up what lies in their arenas, in the order of ranks, so that all get the same bits. A gather
copies what lies there instead. A lost member leaves nothing to be shut: a rank that waits keeps looking whether its
generation broke.

Posts end in the order in which they began. If one is still open when a later one ends, it ends with it: a member that
posted the later one posted the earlier one before.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cordee.group.transport.memory import Store, check_kind, kind_of, open_memory
from cordee.group.transport.seam import Transport

ARENA_BYTES = 16 * 2**20
"""For each member's sums: two or more under way at once."""
NEAR_BYTES = 16 * 2**20
"""The same for what layers and `cordee.gather` exchange: kilobytes mostly."""
MOST_BYTES = 64 * 2**20
"""A sum reads every member's tensor: beyond so many bytes in all, a ring over sockets moves less."""
_RECORDS = 1024
"""Posts of one member that may be under way."""
_HEAD = 64 + 16 * _RECORDS
"""Bytes in front of an arena: how many were posted, how many were read, and where each post lies."""
_VIEWS = 256
"""Windows that are kept."""
_SPINS = 64
_PATIENT_S = 0.0002
"""After so long a wait is not about to end: sleep. A spinning rank slows others on its core."""


class Shared(Transport):
    """The arenas of all members of a generation, for collectives that all of them begin in the same order."""

    within_host = True

    def __init__(self, memory: memoryview, rank: int, size: int, broken: Callable[[], bool], deadline_s: float) -> None:
        """Made by `open_shared`."""
        self.size = size
        self._memory, self._rank, self._broken, self._deadline_s = memory, rank, broken, deadline_s
        span = len(memory) // size
        self._arena = span - _HEAD
        self._starts = [span * one + _HEAD for one in range(size)]
        self._words = [memory[span * one : span * one + _HEAD].cast("q") for one in range(size)]
        self._mine = self._words[rank]
        self._posted = self._read = 0
        self._open: deque[tuple[Tensor, Sequence[Tensor]]] = deque()
        """The posts after `_read`: what was posted, and where each member's is copied to; nowhere for a sum."""
        self._in_flight = 0
        self._next = 0
        self._held: deque[tuple[int, int, int]] = deque()
        """Regions of my arena that a member may still read: which post, from where to where."""
        self._fence = threading.Lock()
        self._views: dict[tuple[int, int, torch.dtype, torch.Size], Tensor] = {}
        """Windows of the arenas, made once: a training posts the same few tensors at the same few places."""

    def fits(self, tensor: Tensor) -> bool:
        """Whether `tensor` can be posted: a matter of its size alone, so that all members answer alike."""
        small = tensor.nbytes * self.size <= MOST_BYTES and _padded(tensor.nbytes) <= self._arena // 2
        return small and tensor.is_cpu and tensor.is_contiguous() and tensor.numel() > 0

    def sum(self, tensor: Tensor) -> SharedWork | None:
        """Add up in place; see `Transport`."""
        return self.post(tensor) if self.fits(tensor) else None

    def gather(self, tensor: Tensor, parts: Sequence[Tensor]) -> SharedWork | None:
        """Each rank's tensor into its part."""
        return self.post(tensor, parts) if self.fits(tensor) else None

    def post(self, tensor: Tensor, parts: Sequence[Tensor] = ()) -> SharedWork:
        """Begin to add up `tensor`, in place; or, if there are `parts`, to copy each member's into its part.

        Where the arena has no room for it, the posts before it are ended first.
        """
        if not self._has_room(tensor.nbytes):
            self.finish(self._posted)
        start = self._make_room(tensor.nbytes)
        self._view(self._rank, start, tensor).copy_(tensor)
        self._posted += 1
        self._in_flight += _padded(tensor.nbytes)
        self._open.append((tensor, parts))
        record = 8 + 2 * (self._posted % _RECORDS)
        self._mine[record], self._mine[record + 1] = start, kind_of(tensor, gathers=bool(parts))
        self._held.append((self._posted, start, start + tensor.nbytes))
        with self._fence:  # a barrier: the others must not see the count before the content
            self._mine[0] = self._posted
        return SharedWork(self, self._posted)

    def finish(self, number: int) -> None:
        """End the member's posts up to `number`; raises `RuntimeError` if a member was lost before that."""
        if number <= self._read:
            return
        self._await(0, number)
        while self._read < number:
            tensor, parts = self._open[0]
            self._end(self._read + 1, tensor, parts)
            self._open.popleft()
            self._in_flight -= _padded(tensor.nbytes)
            self._read += 1
        with self._fence:  # all is read before the others may write there again
            self._mine[1] = self._read

    def _end(self, number: int, tensor: Tensor, parts: Sequence[Tensor]) -> None:
        record = 8 + 2 * (number % _RECORDS)
        with self._fence:
            posted = [(words[record], words[record + 1]) for words in self._words]
        for one, (_, kind) in enumerate(posted):
            check_kind(self._rank, kind_of(tensor, gathers=bool(parts)), one, kind)
        views = [self._view(one, start, tensor) for one, (start, _) in enumerate(posted)]
        if parts:
            for part, view in zip(parts, views, strict=True):
                part.copy_(view)
            return
        torch.add(views[0], views[1], out=tensor)
        for view in views[2:]:
            tensor.add_(view)

    def _has_room(self, nbytes: int) -> bool:
        """Whether the open posts and this one take at most half of the arena, and of the records.

        Then there is always room for it that no open post of our own lies in.
        """
        return self._in_flight + _padded(nbytes) <= self._arena // 2 and len(self._open) < _RECORDS // 2

    def _view(self, rank: int, start: int, like: Tensor) -> Tensor:
        key = rank, start, like.dtype, like.shape
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            begin = self._starts[rank] + start
            view = torch.frombuffer(self._memory, dtype=like.dtype, count=like.numel(), offset=begin).view(like.shape)
            self._views[key] = view
        return view

    def _make_room(self, nbytes: int) -> int:
        """The start of a region of my arena that no member reads any more."""
        start = self._next if self._next + nbytes <= self._arena else 0
        while self._held and self._overlaps(start, start + nbytes):
            self._await(1, self._held[0][0])
            self._held.popleft()
        if not self._held:
            start = 0  # the same pages again: they are in the cache
        self._next = start + _padded(nbytes)
        return start

    def _overlaps(self, start: int, stop: int) -> bool:
        read = min(words[1] for words in self._words)
        while self._held and self._held[0][0] <= read:
            self._held.popleft()
        return any(start < end and begin < stop for _, begin, end in self._held)

    def _await(self, word: int, number: int) -> None:
        """Until all members have posted (0) or read (1) so many."""
        spins, began = 0, 0.0
        for words in self._words:
            while words[word] < number:
                spins += 1
                if self._broken():
                    raise RuntimeError("a member was lost before the collective was complete")
                if spins <= _SPINS:
                    continue
                began = began or time.monotonic()
                waited = time.monotonic() - began
                if waited > self._deadline_s:
                    raise RuntimeError(f"waited {waited:.0f} s for the other members")
                if waited < _PATIENT_S:
                    os.sched_yield()
                else:
                    time.sleep(0.0001)


class SharedWork:
    """A post that was begun."""

    ends_by_itself = True
    __slots__ = ("_number", "_shared")

    def __init__(self, shared: Shared, number: int) -> None:
        """Made by `Shared.post`."""
        self._shared, self._number = shared, number

    def has_ended(self) -> bool:
        """Nothing goes on by itself: a member that waits adds up."""
        return True

    def wait(self, broken: Callable[[], bool]) -> None:
        """Until the sum, or the part of every rank, is there; `Shared` looks for lost peers by itself."""
        self._shared.finish(self._number)


def open_shared(
    store: Store, rank: int, size: int, broken: Callable[[], bool], deadline_s: float
) -> tuple[Shared, ...]:
    """The memory of this generation, for sums and for layers; for all members empty if one has no access."""
    sums = size * (_HEAD + ARENA_BYTES)
    whole = open_memory(store, rank, size, range(size), sums + size * (_HEAD + NEAR_BYTES))
    if whole is None:
        return ()
    return tuple(Shared(part, rank, size, broken, deadline_s) for part in (whole[:sums], whole[sums:]))


def _padded(nbytes: int) -> int:
    """What a post takes of an arena: whole lines of the cache."""
    return -(-nbytes // 64) * 64
