"""Keys and values of a map-reduce: what they may be, how they are ordered, and how they lie in files.

A file is a row of blocks, each a length and a list of records in MessagePack; a record is a key and some of its values.
Nothing is pickled. Keys that are equal in Python are one key: `True` and `1.0` come back as 1.
"""

from __future__ import annotations

import heapq
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np

from cordee.core.errors import DataError, StorageError

KEYS = "None, whole numbers of 64 bits, floats, str, bytes, and tuples of such"
VALUES = "None, bool, whole numbers of 64 bits, floats, str, bytes, NumPy's numbers and arrays, lists and dicts of such"
BLOCK = 64 << 10
"""Bytes of a block, about."""
MOST_VALUES = 1000
"""Of one key in a record."""
FAN = 64
"""Files that are merged at once."""
_HEAD = struct.Struct("<I")
_ARRAY = 1
_PLAIN = frozenset({int, str, float, bytes, bool, type(None)})
_NUMBERS = "biufc"

Key = Any
Value = Any
Record = tuple[Key, list[Value]]


# ------------------------------------------------------------- what they may be


def key_of(given: Any) -> Key:
    """A key as it travels; `DataError` for what cannot."""
    kind = type(given)
    if kind is str or kind is int or kind is bytes or given is None:
        return given
    if isinstance(given, np.generic):
        return key_of(given.item())
    if isinstance(given, bool):
        return int(given)
    if isinstance(given, float) and not math.isnan(given):
        return int(given) if given.is_integer() and -(2**63) <= given < 2**64 else float(given)
    if kind is tuple:
        return tuple(map(key_of, given))
    raise DataError(f"a key is {_shown(given)}: keys may be {KEYS}")


def value_of(given: Any) -> Value:
    """A value as it travels: tuples become lists, NumPy's numbers Python's; `DataError` for what cannot."""
    if type(given) in _PLAIN:
        return given
    if isinstance(given, list | tuple):
        return [value_of(one) for one in given]
    if isinstance(given, dict):
        return {key_of(name): value_of(one) for name, one in given.items()}
    if isinstance(given, np.generic) and type(given.item()) in _PLAIN:
        return given.item()
    if isinstance(given, np.ndarray) and given.dtype.kind in _NUMBERS:
        return given
    raise DataError(f"a value is {_shown(given)}: values may be {VALUES}")


def _shown(given: Any) -> str:
    text = repr(given)
    return f"{type(given).__name__} ({text if len(text) <= 80 else text[:80] + '...'})"


def _pack_array(one: Any) -> msgspec.msgpack.Ext:
    head = msgspec.msgpack.encode((one.dtype.str, one.shape))
    return msgspec.msgpack.Ext(_ARRAY, _HEAD.pack(len(head)) + head + np.ascontiguousarray(one).tobytes())


def _unpack_array(code: int, data: memoryview) -> Any:
    if code != _ARRAY:
        raise ValueError(f"extension {code} is not known")
    start = _HEAD.size + _HEAD.unpack(data[: _HEAD.size])[0]
    dtype, shape = msgspec.msgpack.decode(data[_HEAD.size : start], type=tuple[str, tuple[int, ...]])
    return np.frombuffer(bytearray(data[start:]), dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack_array)
_one = msgspec.msgpack.Decoder(ext_hook=_unpack_array)
_decoder = msgspec.msgpack.Decoder(list[tuple[Any, list[Any]]], ext_hook=_unpack_array)


def encode(thing: Any) -> bytes:
    """A key or value, or several, as bytes; `DataError` for numbers and texts that have none."""
    try:
        return _encoder.encode(thing)
    except (OverflowError, UnicodeEncodeError, ValueError, TypeError) as error:
        raise DataError(f"{_shown(thing)} cannot travel ({error}): values may be {VALUES}") from error


def decode(data: bytes) -> Value:
    """What `encode` made."""
    return _one.decode(data)


def order(key: Key) -> Any:
    """What keys are sorted by: kind, then value."""
    if isinstance(key, str):
        return 2, key
    if isinstance(key, int | float):
        return 1, key
    if isinstance(key, bytes):
        return 3, key
    return (0, 0) if key is None else (4, tuple(map(order, key)))


def partition_of(key: Key, partitions: int) -> int:
    """Which part a key belongs to, the same in every process and on every host."""
    return zlib.crc32(encode(key)) % partitions


def _key_read(key: Any) -> Key:
    return tuple(map(_key_read, key)) if isinstance(key, list) else key


# ------------------------------------------------------------- files


class Segment(NamedTuple):
    """A part of a file that holds records in the order of their keys."""

    path: str
    start: int
    stop: int


class Writer:
    """Writes records one after the other to a file."""

    def __init__(self, path: str) -> None:
        """Make the file."""
        self.path = path
        self.at = 0
        """Bytes so far, after `end_segment`."""
        self._records: list[Record] = []
        self._size = 0
        try:
            self._file = open(path, "wb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise _full(path, error) from error

    def write(self, key: Key, values: Iterable[Value]) -> None:
        """The next record."""
        some: list[Value] = []
        for value in values:
            some.append(value)
            self._size += _about(value)
            if len(some) == MOST_VALUES or self._size >= BLOCK:
                self._records.append((key, some))
                some = []
                if self._size >= BLOCK:
                    self._flush()
        if some:
            self._records.append((key, some))
            self._size += _about(key)

    def end_segment(self, start: int) -> Segment:
        """All since `start`."""
        self._flush()
        return Segment(self.path, start, self.at)

    def close(self) -> None:
        """All is written."""
        try:
            self._file.close()
        except OSError as error:
            raise _full(self.path, error) from error

    def _flush(self) -> None:
        if not self._records:
            return
        body = encode(self._records)
        try:
            self._file.write(_HEAD.pack(len(body)))
            self._file.write(body)
        except OSError as error:
            raise _full(self.path, error) from error
        self.at += _HEAD.size + len(body)
        self._records, self._size = [], 0


def _about(value: Value) -> int:
    """The bytes of a value, roughly."""
    if isinstance(value, str | bytes):
        return 8 + len(value)
    if isinstance(value, np.ndarray):
        return 32 + int(value.nbytes)
    if isinstance(value, list | tuple):
        return 8 + sum(map(_about, value))
    if isinstance(value, dict):
        return 8 + sum(_about(name) + _about(one) for name, one in value.items())
    return 9


def _full(path: str, error: OSError) -> StorageError:
    return StorageError(
        f"cannot write {path}: {error.strerror}. A map-reduce keeps its pairs there: free some space, or set TMPDIR to "
        "a folder on a larger disk"
    )


def read(segment: Segment) -> Iterator[Record]:
    """The records of a segment."""
    handle = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at = segment.start
        while at < segment.stop:
            (length,) = _HEAD.unpack(os.pread(handle, _HEAD.size, at))
            at += _HEAD.size
            for key, values in _decoder.decode(_whole(handle, length, at)):
                yield _key_read(key), values
            at += length
    finally:
        os.close(handle)


def _whole(handle: int, length: int, at: int) -> bytes:
    data = os.pread(handle, length, at)
    while len(data) < length:  # more than 2 GiB at once
        part = os.pread(handle, length - len(data), at + len(data))
        if not part:
            raise StorageError("a file of pairs has become shorter: does another program clear the temporary folder?")
        data += part
    return data


def merged(segments: Sequence[Segment]) -> Iterator[tuple[Key, Iterator[Value]]]:
    """Each key with all of its values: in the order of keys, and for each in that of the segments."""
    records = heapq.merge(*map(read, segments), key=lambda one: order(one[0]))
    for key, same in groupby(records, key=lambda one: one[0]):
        yield key, chain.from_iterable(values for _, values in same)


def narrowed(segments: Sequence[Segment], path: str) -> tuple[list[Segment], int]:
    """As few segments as can be merged at once, with the same pairs; and the bytes that were written for that."""
    found, written, number = [one for one in segments if one.stop > one.start], 0, 0
    while len(found) > FAN:
        fewer = []
        for start in range(0, len(found), FAN):
            writer = Writer(f"{path}-{number}")
            number += 1
            for key, values in merged(found[start : start + FAN]):
                writer.write(key, values)
            fewer.append(writer.end_segment(0))
            writer.close()
            written += fewer[-1].stop
        found = fewer
    return found, written
