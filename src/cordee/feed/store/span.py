"""The part of a build that one process does without the others: some files in a row, from their bytes to shards."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cordee.core import heap
from cordee.core.damage import write_whole
from cordee.feed.columns import Schema, taken
from cordee.feed.sources.seam import Fault
from cordee.feed.steps.seam import Rows
from cordee.feed.store.cutting import Span
from cordee.feed.store.layout import BUILDING, MOST_FAULTS, SETS, Shard, Skipped
from cordee.feed.store.recipe import RowMaker, Taken
from cordee.feed.store.statistics import Summary, merged, summary_of
from cordee.feed.store.write import ShardWriter, nbytes_of, storage_errors
from cordee.feed.taskwire import report
from cordee.feed.threads import ahead, in_threads


class Done(msgspec.Struct, frozen=True):
    """What a process tells of its progress, since it last did."""

    rows: int = 0
    nbytes: int = 0
    """Of rows."""
    read: int = 0
    """Bytes of files that are finished."""


class Cut(msgspec.Struct):
    """The shards that were written at once, one of each set that has rows; and where to go on after them."""

    shards: dict[str, Shard]
    place: int
    """In the span, from 0."""
    start: int
    """Of that file, in its reader's count."""
    row: int
    """How many rows came before in that file."""
    statistics: dict[str, Summary]
    """Of all rows of the span so far."""
    skipped: Skipped = Skipped()
    done: bool = False


def cuts_of(out: Path, number: int) -> list[Cut]:
    """What was written of a span so far."""
    found: list[Cut] = []
    for count in itertools.count():
        try:
            found.append(msgspec.json.decode(_record(out, number, count).read_bytes(), type=Cut))
        except (OSError, msgspec.MsgspecError):
            return found
    raise AssertionError


@dataclass(frozen=True)
class SpanBuilder:
    """Builds spans, in whichever process it is sent to."""

    out: Path
    maker: RowMaker
    schema: Schema
    shard_bytes: int

    def __call__(self, span: Span) -> int:
        """Write what is missing of a span; how many cuts it has."""
        heap.stretch()  # arrays of one chunk after the other take the same pages
        cuts = cuts_of(self.out, span.number)
        if cuts and cuts[-1].done:
            return len(cuts)
        at = cuts[-1] if cuts else Cut({}, 0, span.start, span.start, {name: Summary() for name in self.schema})
        shards = _Shards(self.out, span.number, len(cuts), self.schema, at.statistics)
        skipped, row = at.skipped, at.row
        for index, made, found in in_threads(self._summed, ahead(self._rows(span, at))):
            if made is None:  # the file's end
                report(Done(read=span.sizes[index]))
                row = 0
                continue
            rows, chunk = made
            row += chunk.rows
            if chunk.faults:
                skipped = skipped.plus(_skipped(chunk.faults))
            if len(rows):
                shards.add(rows, found)
            report(Done(chunk.rows, nbytes_of(rows.columns)))
            if shards.nbytes >= self.shard_bytes:
                shards.finish(Cut({}, index, chunk.next, row, shards.statistics, skipped))
        shards.finish(Cut({}, len(span.places), 0, 0, shards.statistics, skipped, done=True))
        return shards.count

    def _rows(self, span: Span, at: Cut) -> Iterator[tuple[int, Taken | None]]:
        """What comes after a cut, each with the place of its file in the span; None after the last rows of a file."""
        start, row = at.start, at.row
        for index in range(at.place, len(span.places)):
            for made in self.maker.rows(span.places[index], start, row, span.stop):
                yield index, made
            yield index, None
            start = row = 0

    def _summed(self, part: tuple[int, Taken | None]) -> tuple[int, Taken | None, dict[str, Summary]]:
        index, made = part
        if made is None or not len(made.rows):
            return index, made, {}
        rows = made.rows
        return index, made, {name: summary_of(rows.columns[name], rows.origins) for name in self.schema}


class _Shards:
    """The shards that a span's rows come into, one of each set, and what was found in all rows so far."""

    def __init__(self, out: Path, number: int, count: int, schema: Schema, statistics: dict[str, Summary]) -> None:
        self.count, self.nbytes, self.statistics = count, 0, statistics
        """Cuts so far, and bytes since the last one."""
        self._out, self._number, self._schema = out, number, schema
        self._writers: dict[str, ShardWriter] = {}

    def add(self, rows: Rows, statistics: dict[str, Summary]) -> None:
        for name, found in statistics.items():
            self.statistics[name] = merged(self.statistics[name], found)
        self.nbytes += nbytes_of(rows.columns)
        for number, name in enumerate(SETS):
            of_set = rows.sets == number
            count = int(np.count_nonzero(of_set))
            if count == len(rows):
                self._writer(name).add(rows.columns, count)
            elif count:
                ids = np.flatnonzero(of_set)
                self._writer(name).add({each: taken(column, ids) for each, column in rows.columns.items()}, count)

    def finish(self, cut: Cut) -> None:
        """Shards first, then the record that counts them: without it they are written again."""
        cut.shards.update((name, self._writers[name].finish()) for name in SETS if name in self._writers)
        path = _record(self._out, self._number, self.count)
        with storage_errors(path, 4096):
            write_whole(path, msgspec.json.encode(cut).decode())
        self._writers, self.count, self.nbytes = {}, self.count + 1, 0

    def _writer(self, name: str) -> ShardWriter:
        if name not in self._writers:
            folder = f"{name}-{self._number:06}-{self.count:03}"
            self._writers[name] = ShardWriter(self._out, folder, self._schema)
        return self._writers[name]


def _skipped(faults: Sequence[Fault]) -> Skipped:
    files = Counter(one.file for one in faults)
    return Skipped().plus(Skipped(len(faults), dict(files), tuple(map(str, faults[:MOST_FAULTS]))))


def _record(out: Path, number: int, count: int) -> Path:
    return out / BUILDING / f"{number:06}-{count:03}.json"


def forget_span(out: Path, number: int, cuts: Sequence[Cut]) -> None:
    """Take back what was written of a span: its shards are not as they were."""
    for count in range(len(cuts)):
        with contextlib.suppress(OSError):
            _record(out, number, count).unlink()


def whole(out: Path, cuts: Sequence[Any]) -> bool:
    """Whether all files of these shards are there, each as long as it was."""
    try:
        return all(
            (out / shard.folder / file.name).stat().st_size == file.size
            for cut in cuts
            for shard in cut.shards.values()
            for file in shard.files
        )
    except OSError:
        return False
