"""For tests of caches: blocks that count what is asked of them, a small store in a folder, Belady offline."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cordee.feed.columns import Columns, kind_of_column, rows_of, slice_of
from cordee.feed.store.layout import LOCK, MANIFEST, Manifest, Shard, kinds_of
from cordee.feed.store.write import ShardWriter


def content(block: int, nbytes: int) -> np.ndarray:
    """What a block holds."""
    return np.random.default_rng(block).integers(0, 256, nbytes).astype(np.uint8)


class Blocks:
    """Blocks of equal size."""

    key = "blocks"

    def __init__(self, blocks: int, nbytes: int = 1024) -> None:
        self.blocks, self._nbytes, self.fetched = blocks, nbytes, []
        self._lock = threading.Lock()

    def nbytes(self, block: int) -> int:
        return self._nbytes

    def fetch(self, block: int, into: np.ndarray) -> None:
        with self._lock:
            self.fetched.append(block)
        into[:] = content(block, self._nbytes)


def optimum(reads: Sequence[int], places: int) -> int:
    """Hits of Belady's choice among all that may also leave a block out; by looking through what is left each time."""
    cached: set[int] = set()
    hits = 0

    def after(block: int, at: int) -> int:
        return next((later for later in range(at + 1, len(reads)) if reads[later] == block), len(reads))

    for at, block in enumerate(reads):
        if block in cached:
            hits += 1
            continue
        cached.add(block)
        if len(cached) > places:
            cached.remove(max(cached, key=lambda one: after(one, at)))
    return hits


def write_store(folder: Path, columns: Columns, shard_rows: int, **sets: int) -> Manifest:
    """A store as a build leaves it; `sets` has the rows of each set, which follow one another in `columns`."""
    schema = {name: kind_of_column(column) for name, column in columns.items()}
    shards: dict[str, tuple[Shard, ...]] = {}
    row = 0
    folder.mkdir(parents=True)
    for name, count in (sets or {"train": rows_of(columns)}).items():
        edges = [*range(row, row + count, shard_rows), row + count]
        written = []
        for start, stop in pairwise(edges):
            writer = ShardWriter(folder, f"{name}-{start:06d}", schema)
            writer.add({one: slice_of(column, start, stop) for one, column in columns.items()}, stop - start)
            written.append(writer.finish())
        shards[name] = tuple(written)
        row += count
    manifest = Manifest(1, "test", kinds_of(schema), shards, {})
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    (folder / LOCK).touch()
    return manifest


class Folder:
    """Brings bytes of a store's files, and counts them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nbytes, self.asked = folder, 0, []
        self._lock = threading.Lock()

    def __call__(self, path: str, start: int, count: int) -> bytes:
        raw = (self.folder / path).read_bytes()
        raw = raw[start:] if count < 0 else raw[start : start + count]
        with self._lock:
            self.nbytes += len(raw)
            self.asked.append((path, start, count))
        return raw

    def __reduce__(self) -> Any:
        return Folder, (self.folder,)
