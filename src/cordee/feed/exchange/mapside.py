"""The map side of a map-reduce: one task's pairs, combined, sorted and written in a part for each reducer."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cordee.core.errors import DataError
from cordee.feed.exchange.counters import Counters
from cordee.feed.exchange.pairs import (
    Key,
    Segment,
    Value,
    Writer,
    encode,
    key_of,
    merged,
    narrowed,
    order,
    partition_of,
    value_of,
)
from cordee.feed.exchange.pieces import Piece, Reading

Map = Callable[[Any], Iterable[tuple[Any, Any]]]
Combine = Callable[[Any, list[Any]], Any]
AT_ONCE = 64
"""Values of one key that are combined when there are so many."""
OVERHEAD = 120
"""Bytes that Python takes for a key and its list, and half of it for a value, about."""


@dataclass(frozen=True)
class MapWork:
    """What every map task does; its processes are sent this."""

    reading: Reading
    map: Map
    combine: Combine | None
    folder: str
    partitions: int
    memory: int
    """Bytes that the pairs of a process may take before they are written."""

    def __call__(self, task: tuple[int, Piece]) -> tuple[list[Segment], Counters]:
        """Map one piece: a segment for each reducer, and what was done."""
        number, piece = task
        began = time.perf_counter()
        side = MapSide(attempt(self.folder, "map", number), self.partitions, self.combine, self.memory)
        items = 0
        for item in self.reading.items(piece):
            items += 1
            for pair in self._mapped(item):
                try:
                    key, value = pair
                except (TypeError, ValueError):
                    raise DataError(
                        f"map gave {type(pair).__name__} {str(pair)[:80]!r}: pairs (key, value) are expected"
                    ) from None
                side.add(key, value)
        segments, counted = side.finish()
        seconds = time.perf_counter() - began
        return segments, counted + Counters(items=items, map_tasks=1, map_s=seconds)

    def _mapped(self, item: Any) -> Iterator[tuple[Any, Any]]:
        given = self.map(item)
        if given is None or isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise DataError(
                f"map gave {type(given).__name__}: a list of pairs (key, value) is expected, or yield them one by one"
            )
        return iter(given)


class MapSide:
    """Pairs of one task, in memory up to a budget, then in files."""

    def __init__(self, path: str, partitions: int, combine: Combine | None, memory: int) -> None:
        """Files' names begin with `path`."""
        self._path, self._partitions, self._combine, self._memory = path, partitions, combine, memory
        self._held: dict[Key, list[Value]] = {}
        self._size = 0
        self._runs: list[list[Segment]] = []
        self._spilled = 0
        self._mapped = [0, 0]
        Path(path).touch()  # tells how often the task was begun

    def add(self, key: Any, value: Any) -> None:
        """One pair."""
        key, value = key_of(key), value_of(value)
        size = len(encode((key, value)))
        self._mapped[0] += 1
        self._mapped[1] += size
        values = self._held.get(key)
        if values is None:
            self._held[key] = [value]
            self._size += size + OVERHEAD
        else:
            values.append(value)
            self._size += size + OVERHEAD // 2
            if self._combine is not None and len(values) >= AT_ONCE:
                self._held[key] = [self._combined(key, values)]
                self._size -= (size + OVERHEAD // 2) * (len(values) - 1)
        if self._size > self._memory:
            self._make_room()

    def finish(self) -> tuple[list[Segment], Counters]:
        """A segment for each partition."""
        kept = [0, 0]
        if not self._runs:
            segments = self._write(f"{self._path}-out", self._grouped(), kept)
        else:
            self._spill()
            segments = self._write(f"{self._path}-out", self._merged(), kept)
            for run in self._runs:
                os.unlink(run[0].path)
        counted = Counters(
            pairs_mapped=self._mapped[0],
            bytes_mapped=self._mapped[1],
            pairs_combined=kept[0],
            bytes_combined=kept[1],
            bytes_exchanged=segments[-1].stop,
            bytes_spilled=self._spilled,
            spills=len(self._runs),
        )
        return segments, counted

    def _make_room(self) -> None:
        if self._combine is not None:
            for key, values in self._held.items():
                if len(values) > 1:
                    self._held[key] = [self._combined(key, values)]
            self._size = sum(len(encode((key, values[0]))) + OVERHEAD for key, values in self._held.items())
        if self._size > self._memory // 2:
            self._spill()

    def _spill(self) -> None:
        run = self._write(f"{self._path}-run-{len(self._runs)}", self._grouped(), [0, 0])
        self._runs.append(run)
        self._spilled += run[-1].stop
        self._held, self._size = {}, 0

    def _grouped(self) -> Iterator[tuple[int, Key, Iterable[Value]]]:
        """What is in memory, by partition and key."""
        parts: list[list[Key]] = [[] for _ in range(self._partitions)]
        for key in self._held:
            parts[partition_of(key, self._partitions)].append(key)
        for number, keys in enumerate(parts):
            keys.sort(key=order)
            for key in keys:
                yield number, key, self._together(key, self._held[key])

    def _merged(self) -> Iterator[tuple[int, Key, Iterable[Value]]]:
        """What is in the files of all runs, by partition and key."""
        for number in range(self._partitions):
            segments, written = narrowed([run[number] for run in self._runs], f"{self._path}-wide-{number}")
            self._spilled += written
            for key, values in merged(segments):
                yield number, key, self._together(key, list(values)) if self._combine is not None else values

    def _together(self, key: Key, values: list[Value]) -> list[Value]:
        return values if self._combine is None or len(values) == 1 else [self._combined(key, values)]

    def _combined(self, key: Key, values: list[Value]) -> Value:
        assert self._combine is not None
        return named("combine", key, lambda: value_of(self._combine(key, values)))  # type: ignore[misc]

    def _write(self, path: str, records: Iterable[tuple[int, Key, Iterable[Value]]], kept: list[int]) -> list[Segment]:
        writer = Writer(path)
        segments: list[Segment] = []
        start = 0
        for number, key, values in records:
            while len(segments) < number:
                segments.append(writer.end_segment(start))
                start = writer.at
            writer.write(key, _counted(key, values, kept))
        while len(segments) < self._partitions:
            segments.append(writer.end_segment(start))
            start = writer.at
        writer.close()
        return segments


def _counted(key: Key, values: Iterable[Value], kept: list[int]) -> Iterator[Value]:
    for value in values:
        kept[0] += 1
        kept[1] += len(encode((key, value)))
        yield value


def named(function: str, key: Key, call: Callable[[], Value]) -> Value:
    """What a function of the user's gives for a key; a `DataError` of ours says which key that was."""
    try:
        return call()
    except DataError as error:
        raise DataError(f"{function} of key {repr(key)[:80]}: {error.message}", next_step=error.next_step) from error


def attempt(folder: str, kind: str, number: int) -> str:
    """A name for the files of a task that no other try of it has."""
    return f"{folder}/{kind}-{number:06d}-{secrets.token_hex(6)}"
