"""TFRecord files of `tf.train.Example` messages: read without TensorFlow, every record by its checksum.

A record is its length (8 bytes), the masked CRC-32C of that, the message, and the masked CRC-32C of the message. All
records of a block of some MiB are parsed side by side (`example`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Kind, Schema, taken
from cordee.feed.permute import Ids
from cordee.feed.places import Place
from cordee.feed.sources.compressed import BLOCK, opened
from cordee.feed.sources.crc32c import crcs, masked
from cordee.feed.sources.example import parse, windows
from cordee.feed.sources.features import column_of, infer
from cordee.feed.sources.protobuf import PAD, Bytes
from cordee.feed.sources.seam import ON_ERROR, Chunk, Fault

_HEAD, _TAIL = 12, 4
_LENGTH = struct.Struct("<Q")
_LOOKED = 256
"""So many records, of the first file that has any, tell which features there are."""
_LONGEST = 1 << 31
"""Bytes of a message at most: protobuf has no longer ones."""


@dataclass(frozen=True)
class TFRecordReader:
    """Reads TFRecord files, plain or gzip'ed; a row is a record, and rows are numbered by their order in the file."""

    features: tuple[tuple[str, Kind], ...] = ()
    """Which features become columns, and of which kind; none given: all that the first records have."""
    on_error: str = "stop"

    endings = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz", ".tfrec")
    in_process = False

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        if self.on_error not in ON_ERROR:
            raise DataError(f"on_error={self.on_error!r}: choose one of {', '.join(ON_ERROR)}")

    @property
    def key(self) -> str:
        """What it reads, and how."""
        return f"tfrecord 1 {self.features} {self.on_error}"

    def schema(self, places: Sequence[Place]) -> Schema:
        """The features as given, or as the first records have them."""
        if self.features:
            return dict(self.features)
        for place in places:
            with opened(place) as file:
                for frames in _frames(file):
                    few = frames.first(_LOOKED)
                    parsed = parse(few.buffer, few.starts, few.stops)
                    for number, reason in sorted(parsed.bad.items()):
                        raise DataError(str(Fault(place.shown, number + 1, reason)))
                    return infer(few.buffer, parsed, len(few.starts), place)
        raise DataError(
            f"no record in {len(places)} files, the first of which is {places[0].shown}: they are empty"
            if places
            else "there are no TFRecord files"
        )

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The records of a file from number `start` on."""
        before = 0
        with opened(place) as file:
            for frames in _frames(file, start):
                if before + frames.total > start:
                    yield self._chunk(place, schema, frames.without(max(0, start - before)), max(start, before))
                before += frames.total

    def _chunk(self, place: Place, schema: Schema, frames: _Frames, before: int) -> Chunk:
        """The rows of some records, the first of which has the number `before`."""
        parsed, count = parse(frames.buffer, frames.starts, frames.stops), len(frames.starts)
        bad = {**parsed.bad, **frames.faults}
        columns: Columns = {}
        for name, kind in schema.items():
            columns[name], wrong = column_of(frames.buffer, parsed, name, kind, count)
            bad = {**wrong, **bad}
        faults = tuple(Fault(place.shown, before + number + 1, bad[number]) for number in sorted(bad))
        if faults and self.on_error == "stop":
            raise DataError(f"{faults[0]}. To leave such records out and count them: on_error='skip'")
        good = np.setdiff1d(np.arange(count), np.array(list(bad), dtype=np.int64))
        if len(good) < count:
            columns = {name: taken(column, good) for name, column in columns.items()}
        return Chunk(columns, len(good), before + frames.total, faults)


# ------------------------------------------------------------- records


class _Frames(NamedTuple):
    """Some consecutive records: their messages lie in a buffer."""

    buffer: Bytes
    starts: Ids
    stops: Ids
    faults: dict[int, str]
    """Records whose checksum is wrong, by their place here; behind the last one: what ends the file."""

    @property
    def total(self) -> int:
        """How many they are, with the one that ends the file."""
        return len(self.starts) + (len(self.starts) in self.faults)

    def first(self, count: int) -> _Frames:
        """At most so many of them."""
        return self._replace(starts=self.starts[:count], stops=self.stops[:count])

    def without(self, count: int) -> _Frames:
        """Without the first ones."""
        faults = {number - count: reason for number, reason in self.faults.items() if number >= count}
        return _Frames(self.buffer, self.starts[count:], self.stops[count:], faults)


def _frames(file: BinaryIO, check_from: int = 0) -> Iterator[_Frames]:
    """The records of a file, those of a block at a time; messages are checked from record `check_from` on."""
    rest, number, reason = b"", 0, ""
    while not reason:
        block = _read(file, max(BLOCK, _missing(rest)))
        if not block and not rest:
            return
        data = rest + block
        heads, end = _heads(data)
        buffer = np.frombuffer(data + bytes(PAD), np.uint8)
        starts = np.array(heads, np.int64) + _HEAD
        stops = np.array([*heads[1:], end], np.int64)[: len(heads)] - _TAIL
        wrong = _wrong(buffer, starts - _HEAD, np.full(len(heads), 8))
        if len(wrong):
            starts, stops = starts[: wrong[0]], stops[: wrong[0]]
            reason = "the checksum of its length is wrong: from here on the file cannot be read"
        elif not block:
            reason = f"it is cut off: the file ends {len(data) - end} bytes behind its beginning"
        elif _is_lost(data[end : end + _HEAD]):
            reason = "the checksum of its length is wrong: from here on the file cannot be read"
        elif _missing(data[end : end + _HEAD]) > _LONGEST:
            reason = f"it says that it is longer than {_LONGEST:,} bytes, which no message is: the file is damaged"
        faults = {len(starts): reason} if reason else {}
        if number + len(starts) > check_from:
            damaged = _wrong(buffer, starts, stops - starts)
            faults |= dict.fromkeys(damaged.tolist(), "the checksum of its message is wrong: it is damaged")
        number += len(starts)
        rest = data[end:]
        if len(starts) or faults:
            yield _Frames(buffer, starts, stops, faults)


def _read(file: BinaryIO, count: int) -> bytes:
    """So many bytes, or those that there are: no more memory is taken than comes."""
    parts: list[bytes] = []
    while count > 0 and (part := file.read(min(count, 16 * BLOCK))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _heads(data: bytes) -> tuple[list[int], int]:
    """Where the records begin that lie here from end to end, and where the last one ends."""
    heads, at, last = [], 0, len(data) - _HEAD - _TAIL
    while at <= last:
        behind = at + _HEAD + _TAIL + _LENGTH.unpack_from(data, at)[0]
        if behind > len(data):
            break
        heads.append(at)
        at = behind
    return heads, at


def _missing(rest: bytes) -> int:
    """How many bytes a record lacks that has begun; its length was checked."""
    return _HEAD + _TAIL + int(_LENGTH.unpack_from(rest)[0]) - len(rest) if len(rest) >= _HEAD else 0


def _is_lost(head: bytes) -> bool:
    """Whether a record's length is wrong: to wait for so many bytes may take for ever."""
    head_bytes = np.frombuffer(head, np.uint8)
    return len(head) == _HEAD and len(_wrong(head_bytes, np.zeros(1, np.int64), np.full(1, 8))) > 0


def _wrong(buffer: Bytes, starts: Ids, lengths: Ids) -> Ids:
    """Which of these pieces do not have the checksum that stands behind each."""
    if not len(starts):
        return starts
    stored = windows(buffer, starts + lengths, 4).view("<u4")[:, 0]
    return np.flatnonzero(stored != masked(crcs(buffer, starts, lengths)))
