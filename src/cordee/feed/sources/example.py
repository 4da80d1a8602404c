"""Columns of many `tf.train.Example` messages, read side by side: without TensorFlow, and without protobuf's library.

An Example holds Features (field 1), these a map `feature` (field 1) from a key (field 1) to a Feature (field 2), and
that one of a list of bytes (field 1), of floats (2) or of whole numbers (3), whose values are field 1 of the list. A
SequenceExample has Features too, as field 1, and lists of features, as field 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cordee.feed.permute import Ids
from cordee.feed.sources.protobuf import LENGTH, Bytes, Lanes, fields, next_field, varints

BYTES, FLOATS, INTS = 1, 2, 3
LISTS = {0: "nothing", BYTES: "bytes", FLOATS: "floats", INTS: "whole numbers"}
NO_EXAMPLE = "it is no tf.train.Example: its fields cannot be read"
SEQUENCE = (
    "it is a tf.train.SequenceExample; only tf.train.Example is read. Write its lists as features (a list of any "
    "length is one), or read it with TensorFlow and give the rows: cordee.data.rows(factory)"
)
_PACKED_INT, _PACKED_FLOAT = b"\x08", b"\x0d"  # tags of single values, as proto2 wrote lists


class Parsed(NamedTuple):
    """The features of some messages: entry by entry, in any order."""

    rows: Ids
    """The message that each entry belongs to."""
    keys: Lanes
    """Where the name of each entry lies."""
    values: Lanes
    """And its list."""
    kinds: Ids
    """What that is a list of; 0: of nothing."""
    bad: dict[int, str]
    """Messages that cannot be read, and why."""


def parse(buffer: Bytes, starts: Ids, stops: Ids) -> Parsed:
    """Find all features of the messages at these places of a buffer."""
    bad: dict[int, str] = {}
    whole = _nonempty(Lanes(np.arange(len(starts)), starts, stops))
    features = _inner(buffer, whole, bad, top=True)
    entries = _inner(buffer, features, bad)
    keys, values, kinds = _entries(buffer, entries, bad)
    return Parsed(entries.rows, keys, values, kinds, bad)


def names_in(buffer: Bytes, parsed: Parsed) -> list[str]:
    """The names of all features, sorted."""
    edges = zip(parsed.keys.starts.tolist(), parsed.keys.stops.tolist(), strict=True)
    return sorted({bytes(buffer[start:stop]).decode("utf-8", "replace") for start, stop in edges})


def entries_named(buffer: Bytes, parsed: Parsed, name: str, count: int) -> Ids:
    """For each of `count` messages the entry with this name; -1 where it has none. The last one counts."""
    raw = np.frombuffer(name.encode(), np.uint8)
    places = np.flatnonzero(parsed.keys.stops - parsed.keys.starts == len(raw))
    if len(raw):
        places = places[buffer[parsed.keys.stops[places] - 1] == raw[-1]]  # spares most of what follows
        places = places[(windows(buffer, parsed.keys.starts[places], len(raw)) == raw).all(axis=1)]
    found = np.full(count, -1, np.int64)
    found[parsed.rows[places]] = places
    return found


class Lists(NamedTuple):
    """The values of a feature, of several messages: list i is `values[offsets[i] : offsets[i + 1]]`."""

    offsets: Ids
    values: NDArray[np.generic]
    good: NDArray[np.bool_]
    """Whether a list could be read."""
    elements: Ids
    """Of how many values a list consists: of a list of bytes, how many texts."""


def lists_of(buffer: Bytes, lists: Lanes, kind: int) -> Lists:
    """The values of these lists, all of one kind: numbers, or the bytes of texts one after the other."""
    if kind == BYTES:
        return _texts(buffer, lists)
    starts, stops, packed = _packed(buffer, lists, kind)
    if packed.all():
        good, lengths, whole = packed, stops - starts, joined_bytes(buffer, starts, stops)
    else:
        payloads, good = _payloads(buffer, lists, kind)
        lengths, whole = np.array([len(one) for one in payloads], np.int64), np.frombuffer(b"".join(payloads), np.uint8)
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if kind == FLOATS:
        return _lists(edges // 4, whole.view("<f4").astype(np.float32, copy=False), good)
    try:
        values, ends = varints(whole)
    except ValueError:
        values, ends = np.zeros(0, np.int64), np.zeros(0, np.int64)
    offsets = np.searchsorted(ends, edges, side="right")
    cut = np.flatnonzero(np.concatenate([np.zeros(1, np.int64), ends])[offsets] != edges)
    if not len(cut):
        return _lists(offsets, values, good)
    # A number is cut off: each list by itself tells which.
    return _one_by_one([whole[start:stop] for start, stop in pairwise(edges.tolist())], good.copy())


def windows(buffer: Bytes, starts: Ids, width: int) -> Bytes:
    """`width` bytes from each place on: shape (places, width)."""
    view = np.lib.stride_tricks.as_strided(buffer, (len(buffer) - width + 1, width), (1, 1), writeable=False)
    found: Bytes = view[starts]
    return found


def joined_bytes(buffer: Bytes, starts: Ids, stops: Ids) -> Bytes:
    """The bytes of these ranges, one after the other."""
    widths = stops - starts
    if len(widths) and (widths == widths[0]).all():
        return windows(buffer, starts, int(widths[0])).reshape(-1)
    whole = buffer.data
    parts = [whole[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    return np.frombuffer(b"".join(parts), np.uint8)


# ------------------------------------------------------------- messages


def _inner(buffer: Bytes, lanes: Lanes, bad: dict[int, str], *, top: bool = False) -> Lanes:
    """What field 1 of these messages holds, message by message; rows are those of the lanes."""
    parts = [Lanes(*(np.zeros(0, np.int64) for _ in range(3)))]
    for at, found in fields(buffer, lanes):
        bad |= dict.fromkeys(at.rows[~found.good].tolist(), NO_EXAMPLE)
        if top:
            several = found.good & (found.numbers == 2) & (found.wires == LENGTH)
            bad |= dict.fromkeys(at.rows[several].tolist(), SEQUENCE)
        mine = found.good & (found.numbers == 1) & (found.wires == LENGTH)
        if top:
            strange = found.good & ~mine & ~several
            bad |= dict.fromkeys(at.rows[strange].tolist(), NO_EXAMPLE)
        parts.append(_nonempty(Lanes(at.rows, found.starts, found.stops).of(mine)))
    return Lanes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _entries(buffer: Bytes, entries: Lanes, bad: dict[int, str]) -> tuple[Lanes, Lanes, Ids]:
    """Name, list and kind of list of each entry."""
    count = len(entries.rows)
    numbers = np.arange(count)
    keys, messages = (Lanes(numbers, np.zeros(count, np.int64), np.zeros(count, np.int64)) for _ in range(2))
    for at, found in fields(buffer, Lanes(numbers, entries.starts, entries.stops)):
        bad |= dict.fromkeys(entries.rows[at.rows[~found.good]].tolist(), NO_EXAMPLE)
        for number, lanes in ((1, keys), (2, messages)):
            mine = found.good & (found.numbers == number) & (found.wires == LENGTH)
            lanes.starts[at.rows[mine]], lanes.stops[at.rows[mine]] = found.starts[mine], found.stops[mine]
    lists = Lanes(numbers, np.zeros(count, np.int64), np.zeros(count, np.int64))
    kinds = np.zeros(count, np.int64)
    for at, found in fields(buffer, _nonempty(messages)):
        mine = found.good & (found.wires == LENGTH) & (found.numbers >= BYTES) & (found.numbers <= INTS)
        bad |= dict.fromkeys(entries.rows[at.rows[~mine]].tolist(), NO_EXAMPLE)
        rows = at.rows[mine]
        kinds[rows], lists.starts[rows], lists.stops[rows] = found.numbers[mine], found.starts[mine], found.stops[mine]
    return keys, lists, kinds


def _nonempty(lanes: Lanes) -> Lanes:
    return lanes.of(lanes.starts < lanes.stops)


# ------------------------------------------------------------- lists


def _texts(buffer: Bytes, lists: Lanes) -> Lists:
    """The first text of each list; how many there are says whether that is all."""
    count = len(lists.rows)
    starts, stops, elements = (np.zeros(count, np.int64) for _ in range(3))
    good = np.ones(count, np.bool_)
    for at, found in fields(buffer, _nonempty(Lanes(np.arange(count), lists.starts, lists.stops))):
        mine = found.good & (found.numbers == 1) & (found.wires == LENGTH)
        good[at.rows[~mine]] = False
        fresh = mine & (elements[at.rows] == 0)
        starts[at.rows[fresh]], stops[at.rows[fresh]] = found.starts[fresh], found.stops[fresh]
        elements[at.rows[mine]] += 1
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
    return Lists(offsets, joined_bytes(buffer, starts, stops), good, elements)


def _packed(buffer: Bytes, lists: Lanes, kind: int) -> tuple[Ids, Ids, NDArray[np.bool_]]:
    """Where the numbers of each list lie, and whether they do in one piece; an empty list does."""
    filled = np.flatnonzero(lists.starts < lists.stops)
    inside = lists.of(filled)
    found = next_field(buffer, inside)
    whole = found.good & (found.numbers == 1) & (found.wires == LENGTH) & (found.stops == inside.stops)
    if kind == FLOATS:
        whole &= (found.stops - found.starts) % 4 == 0
    starts, stops, packed = lists.starts.copy(), lists.starts.copy(), np.ones(len(lists.rows), np.bool_)
    starts[filled], stops[filled], packed[filled] = found.starts, found.stops, whole
    return starts, stops, packed


def _payloads(buffer: Bytes, lists: Lanes, kind: int) -> tuple[list[bytes], NDArray[np.bool_]]:
    """The numbers of each list as if they lay in one piece, list by list."""
    good = np.ones(len(lists.rows), np.bool_)
    payloads: list[bytes] = []
    for place, (start, stop) in enumerate(zip(lists.starts.tolist(), lists.stops.tolist(), strict=True)):
        try:
            payloads.append(b"".join(_unpacked(buffer[start:stop].tobytes(), kind)))
        except ValueError:
            payloads.append(b"")
            good[place] = False
    return payloads, good


def _unpacked(raw: bytes, kind: int) -> Iterator[bytes]:
    """The values of a list that is not packed in one piece, as they would be there."""
    at = 0
    while at < len(raw):
        tag, at = raw[at : at + 1], at + 1
        if tag == b"\x0a":
            size, at = _varint(raw, at)
            stop = at + size
            if kind == FLOATS and size % 4:
                raise ValueError("a float is cut off")
        elif tag == _PACKED_FLOAT and kind == FLOATS:
            stop = at + 4
        elif tag == _PACKED_INT and kind == INTS:
            stop = _varint(raw, at)[1]
        else:
            raise ValueError("a field of another type")
        if stop > len(raw):
            raise ValueError("a value is cut off")
        yield raw[at:stop]
        at = stop


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(raw):
            break
        byte = raw[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a number is cut off")


def _one_by_one(payloads: list[Bytes], good: NDArray[np.bool_]) -> Lists:
    parts = []
    for place, payload in enumerate(payloads):
        try:
            parts.append(varints(payload)[0])
        except ValueError:
            parts.append(np.zeros(0, np.int64))
            good[place] = False
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(one) for one in parts], dtype=np.int64)])
    return _lists(offsets, np.concatenate(parts), good)


def _lists(offsets: Ids, values: NDArray[np.generic], good: NDArray[np.bool_]) -> Lists:
    return Lists(offsets, values, good, np.diff(offsets))
