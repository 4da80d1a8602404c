"""What the ranks of one host do with a piece of a tensor that all hosts add up: the leader's side, and the others'.

They exchange pieces through slots in memory that they share. Nothing here waits: `begin` and `end` look whether it is
time, and say so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cordee.group.transport.gloo import LOOK_S, Gloo, GlooWork
from cordee.group.transport.memory import check_kind, kind_of
from cordee.group.transport.seam import Sent

SLOT_BYTES = 2**20
SLOTS = 4
"""Pieces that are under way at once: gloo has two threads, and the ranks of a host fill and read the others."""
_POSTED, _READ, _KINDS = 0, 1, 8
"""Words before a rank's slots: pieces posted (by a leader: results), results read, and what kind each slot holds."""
_HEAD = 8 * (_KINDS + SLOTS)
_GRAIN = 32_768
"""Numbers that torch copies or adds on one thread: a team of threads for this one would slow down the training."""
_LOOK_S = 0.001


def crews_of(homes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each host, the leader first, hosts in the order of their leaders; `homes` has the host of each rank.

    Empty where a hierarchy gains nothing: all ranks are on one host, or each on one of its own.
    """
    found: dict[str, list[int]] = {}
    for rank, home in enumerate(homes):
        found.setdefault(home, []).append(rank)
    return tuple(map(tuple, found.values())) if 1 < len(found) < len(homes) else ()


def pieces_of(numbers: int, itemsize: int) -> list[tuple[int, int]]:
    """From where to where each piece of so many numbers goes: as few as fit into slots, of about the same size."""
    count = -(-numbers // (SLOT_BYTES // itemsize))
    return [(numbers * one // count, numbers * (one + 1) // count) for one in range(count)]


class Slots:
    """The memory of one host: for each of its ranks some words, and slots for pieces of its tensors."""

    def __init__(self, memory: memoryview, ranks: Sequence[int], rank: int) -> None:
        """`memory` has `length_for` these ranks of the host; `rank` is this one's."""
        self.ranks, self.own = ranks, ranks.index(rank)
        self._memory, self._span = memory, len(memory) // len(ranks)
        self._words = [memory[start : start + _HEAD].cast("q") for start in range(0, len(memory), self._span)]
        self._fence = threading.Lock()

    @staticmethod
    def length_for(ranks: int) -> int:
        """The bytes that so many ranks need."""
        return ranks * (-(-_HEAD // 64) * 64 + SLOTS * SLOT_BYTES)

    def view(self, place: int, number: int, like: Tensor) -> Tensor:
        """The slot of the piece with this number, of the rank at this place on the host."""
        start = self._span * (place + 1) - SLOT_BYTES * (1 + number % SLOTS)
        return torch.frombuffer(self._memory, dtype=like.dtype, count=like.numel(), offset=start)

    def posted(self, place: int) -> int:
        """Of how many pieces the rank at this place has filled a slot."""
        return self._words[place][_POSTED]

    def read(self, place: int) -> int:
        """How many results it has copied."""
        return self._words[place][_READ]

    def kind(self, place: int, number: int) -> int:
        """What it has posted as piece `number`."""
        return self._words[place][_KINDS + number % SLOTS]

    def post(self, number: int, kind: int) -> None:
        """The slot of this piece is filled."""
        self._words[self.own][_KINDS + number % SLOTS] = kind
        with self._fence:  # a barrier: the others must not see the count before the content
            self._words[self.own][_POSTED] = number

    def have_read(self, number: int) -> None:
        """The result of this piece was copied: its slot may be filled anew."""
        with self._fence:
            self._words[self.own][_READ] = number


class Side(Protocol):
    """What one rank does with a piece. Neither method waits: False if it is not time yet."""

    def begin(self, number: int, piece: Tensor) -> bool:
        """Contribute it; pieces are numbered from 1 on."""

    def end(self, number: int, piece: Tensor) -> bool:
        """Put the result into it."""

    def sends(self, nbytes: int) -> Sent:
        """What this rank sends for a tensor of so many bytes."""

    def cut(self) -> None:
        """Release what waits for a lost peer."""

    def close(self) -> None:
        """Let go of the connections, after `cut`."""


class Mate:
    """A rank that is not the leader of its host."""

    def __init__(self, slots: Slots) -> None:
        """The leader is the first of the `slots`."""
        self._slots = slots

    def begin(self, number: int, piece: Tensor) -> bool:
        """Post it, when the leader is done with what lay in its slot."""
        slots = self._slots
        if slots.posted(0) < number - SLOTS:
            return False
        _copy(slots.view(slots.own, number, piece), piece)
        slots.post(number, kind_of(piece))
        return True

    def end(self, number: int, piece: Tensor) -> bool:
        """Copy what the leader has published."""
        if self._slots.posted(0) < number:
            return False
        _copy(piece, self._slots.view(0, number, piece))
        self._slots.have_read(number)
        return True

    def sends(self, nbytes: int) -> Sent:
        """To its leader, through memory."""
        return Sent(near=nbytes, far=0)

    def cut(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


class Leader:
    """The rank that adds up for its host, and over gloo with the other leaders."""

    def __init__(self, slots: Slots, leaders: Gloo, hosts: int) -> None:
        """`leaders` is the group among so many hosts."""
        self._slots, self.leaders, self._hosts = slots, leaders, hosts
        self._mates = range(1, len(slots.ranks))
        self._works: deque[GlooWork] = deque()

    def begin(self, number: int, piece: Tensor) -> bool:
        """Add up, when all ranks of this host have posted theirs, and have read the result that lay in the slot."""
        slots = self._slots
        if len(self._works) == SLOTS:
            return False
        if any(slots.posted(one) < number or slots.read(one) < number - SLOTS for one in self._mates):
            return False
        total, kind = slots.view(0, number, piece), kind_of(piece)
        for one in self._mates:
            check_kind(slots.ranks[0], kind, slots.ranks[one], slots.kind(one, number))
        if not self._mates:
            _copy(total, piece)
        for one in self._mates:
            _add(total, piece if one == 1 else total, slots.view(one, number, piece))
        self._works.append(self.leaders.sum(total))
        return True

    def end(self, number: int, piece: Tensor) -> bool:
        """Publish what gloo has added up; `RuntimeError` if a leader was lost before that."""
        if not self._works[0].has_ended():
            return False
        self._works.popleft().wait(lambda: False)  # raises its error, if any
        self._slots.post(number, kind_of(piece))
        _copy(piece, self._slots.view(0, number, piece))
        return True

    def sends(self, nbytes: int) -> Sent:
        """To the next leader in their ring; to the others of this host the result, once for all."""
        return Sent(near=nbytes if self._mates else 0, far=2 * nbytes * (self._hosts - 1) // self._hosts)

    def cut(self) -> None:
        """Shut the sockets between leaders."""
        self.leaders.cut()

    def close(self) -> None:
        """As soon as gloo has given up what was under way. It never does so if part of a message had come."""
        deadline = time.monotonic() + 2 * LOOK_S
        while not all(work.has_ended() for work in self._works) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        self.leaders.close(stuck=not all(work.has_ended() for work in self._works))


def _copy(into: Tensor, source: Tensor) -> None:
    for one, other in zip(torch.split(into, _GRAIN), torch.split(source, _GRAIN), strict=True):
        one.copy_(other)


def _add(into: Tensor, first: Tensor, second: Tensor) -> None:
    for one, *both in zip(*(torch.split(tensor, _GRAIN) for tensor in (into, first, second)), strict=True):
        torch.add(*both, out=one)
