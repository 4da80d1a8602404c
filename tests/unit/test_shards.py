"""Shards whose rows come in parts: the files are those of one part, and their checksums are of all bytes."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from cordee.feed.columns import Columns, Ragged, kind_of_column, slice_of
from cordee.feed.store import write
from cordee.feed.store.checksum import joined_crc
from cordee.feed.store.layout import Shard
from cordee.feed.store.write import ShardWriter

ROWS = 1000


def columns_of() -> Columns:
    """A number, a picture, a text."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 5, ROWS)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    text = Ragged(offsets, draw.integers(97, 123, int(offsets[-1])).astype(np.uint8), text=True)
    return {"x": draw.standard_normal(ROWS), "p": draw.integers(0, 255, (ROWS, 3, 2)).astype(np.uint8), "t": text}


def shard_of(out: Path, edges: list[int]) -> Shard:
    """Of rows that come in parts that end there."""
    columns = columns_of()
    out.mkdir()
    writer = ShardWriter(out, "train", {name: kind_of_column(one) for name, one in columns.items()})
    for start, stop in zip([0, *edges], [*edges, ROWS], strict=True):
        writer.add({name: slice_of(one, start, stop) for name, one in columns.items()}, stop - start)
    return writer.finish()


@pytest.mark.parametrize("enough", [1, 2000, 1 << 30])
def test_parts_make_the_files_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enough: int) -> None:
    whole = shard_of(tmp_path / "one", [])
    monkeypatch.setattr(write, "_ENOUGH", enough)
    assert shard_of(tmp_path / "many", [1, 2, 500, 999]) == whole
    for file in whole.files:
        raw = (tmp_path / "many" / "train" / file.name).read_bytes()
        assert (len(raw), zlib.crc32(raw)) == (file.size, file.crc)
        assert raw == (tmp_path / "one" / "train" / file.name).read_bytes()
    assert np.array_equal(np.load(tmp_path / "many/train/p.npy"), columns_of()["p"])


@pytest.mark.parametrize("length", [0, 1, 4095, 1_234_567])
def test_checksums_are_joined(length: int) -> None:
    first, second = os.urandom(4096), os.urandom(length)
    assert joined_crc(zlib.crc32(first), zlib.crc32(second), length) == zlib.crc32(first + second)
