"""Fields of many protobuf messages read side by side: one look of NumPy per field, however many messages there are.

Each message is a lane: a range of bytes in a buffer, which is followed by `PAD` bytes that belong to none. A lane that
is damaged is marked, and never read outside the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cordee.feed.permute import Ids

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]

PAD = 16
"""Bytes behind the last message of a buffer: the longest number has 10."""
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""How a field is written."""
_MORE = np.uint8(0x80)
_LONGEST = 10


class Lanes(NamedTuple):
    """Ranges of bytes in a buffer, each of which belongs to a row."""

    rows: Ids
    starts: Ids
    stops: Ids

    def of(self, chosen: Flags | Ids) -> Lanes:
        """Some of them."""
        return Lanes(self.rows[chosen], self.starts[chosen], self.stops[chosen])


class Fields(NamedTuple):
    """One field of each of several lanes."""

    numbers: Ids
    wires: Ids
    starts: Ids
    """Where the value begins: behind the length, where that is written."""
    stops: Ids
    good: Flags
    """Whether it could be read, and ends within its lane."""


def fields(buffer: Bytes, lanes: Lanes) -> Iterator[tuple[Lanes, Fields]]:
    """The first field of all lanes, the second of those that have one, and so on; damaged lanes come no further."""
    while len(lanes.rows):
        found = next_field(buffer, lanes)
        yield lanes, found
        further = found.good & (found.stops < lanes.stops)
        lanes = Lanes(lanes.rows, found.stops, lanes.stops).of(further)


def next_field(buffer: Bytes, lanes: Lanes) -> Fields:
    """The field with which each lane begins; none of them is empty."""
    tags, at, good = varints_at(buffer, lanes.starts)
    wires = tags & 7
    good &= at <= lanes.stops
    lengths, behind, whole = varints_at(buffer, np.minimum(at, lanes.stops))
    of_length = wires == LENGTH
    starts = np.where(of_length, behind, at)
    room = lanes.stops - starts
    sizes = np.select(
        [of_length, wires == VARINT, wires == FIXED32, wires == FIXED64], [lengths, behind - at, 4, 8], default=-1
    )
    good &= (sizes >= 0) & (sizes <= room) & (whole | (wires == FIXED32) | (wires == FIXED64))
    stops = np.where(good, starts + sizes, lanes.stops)
    return Fields(tags >> 3, wires, np.where(good, starts, lanes.stops), stops, good)


def varints_at(buffer: Bytes, starts: Ids) -> tuple[Ids, Ids, Flags]:
    """The number at each place, what comes behind it, and whether it is one: numbers from 2**62 on are not."""
    first = buffer[starts]
    values = (first & ~_MORE).astype(np.int64)
    behind = starts + 1
    open_ = np.flatnonzero(first & _MORE)
    good = np.ones(len(starts), np.bool_)
    for place in range(1, _LONGEST):
        if not len(open_):
            return values, behind, good
        byte = buffer[starts[open_] + place]
        if place < 9:
            values[open_] |= (byte & ~_MORE).astype(np.int64) << (7 * place)
        behind[open_] += 1
        open_ = open_[(byte & _MORE) != 0]
    good[open_] = False
    good &= values < 2**62
    return values, behind, good


def varints(payload: Bytes) -> tuple[NDArray[np.int64], Ids]:
    """All numbers that lie in these bytes, one after the other, and where each ends; `ValueError` for other bytes."""
    ends = np.flatnonzero(payload < _MORE)
    if len(payload) and (not len(ends) or ends[-1] != len(payload) - 1):
        raise ValueError("a number is cut off")
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if len(ends) else ends
    lengths = ends - starts + 1
    longest = int(lengths.max(initial=0))
    if longest > _LONGEST:
        raise ValueError(f"a number has {longest} bytes, at most {_LONGEST} are possible")
    values = (payload[starts] & ~_MORE).astype(np.uint64)
    longer = np.arange(len(starts))
    for place in range(1, longest):
        longer = longer[lengths[longer] > place]
        part = (payload[starts[longer] + place] & ~_MORE).astype(np.uint64)
        values[longer] |= part << np.uint64(7 * place)
    return values.view(np.int64), ends + 1
