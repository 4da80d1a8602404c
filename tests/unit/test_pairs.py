"""Keys and values of a map-reduce: what they may be, their order, and files of them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import DataError, StorageError, UsageError
from cordee.feed.exchange import pairs
from cordee.feed.exchange.counters import Counters
from cordee.feed.exchange.mapreduce import bytes_of
from cordee.feed.exchange.pairs import Writer, key_of, merged, narrowed, order, partition_of, read, value_of

KEYS: list[Any] = [None, -(2**63), -1, 0, 0.5, 7, 2**64 - 1, math.inf, "", "a", "ä", "b" * 3000, b"", b"\xff", ()]
KEYS += [(1, "x"), (1, ("y", None)), ("a", 2.5)]


def test_keys_that_are_equal_are_one_key() -> None:
    for one in (True, 1.0, np.int64(1), np.float32(1), np.bool_(True)):
        assert key_of(one) == 1 and type(key_of(one)) is int
    assert key_of((1.0, (np.str_("x"), -0.0))) == (1, ("x", 0))
    assert {partition_of(key_of(one), 1000) for one in (True, 1, 1.0, np.uint8(1))} == {partition_of(1, 1000)}


def test_where_a_key_goes_is_the_same_in_every_process_and_version() -> None:
    assert [partition_of(one, 16) for one in (None, 7, "word", b"x", ("a", 1))] == [13, 14, 6, 1, 4]
    counts = np.bincount([partition_of(f"word {number}", 8) for number in range(4000)], minlength=8)
    assert counts.min() > 400


@pytest.mark.parametrize("wrong", [math.nan, [1], {"a": 1}, {1}, object(), 1j, np.zeros(2), (1, [2])])
def test_what_cannot_be_a_key(wrong: Any) -> None:
    with pytest.raises(DataError, match="keys may be None, whole numbers"):
        key_of(wrong)


@pytest.mark.parametrize("wrong", [{1}, object(), 1j, np.array(["a"]), [object()], {"a": {2}}, Path("x"), range(3)])
def test_what_cannot_be_a_value(wrong: Any) -> None:
    with pytest.raises(DataError, match="values may be None, bool"):
        value_of(wrong)


@pytest.mark.parametrize("wrong", [2**64, -(2**63) - 1, "\ud800"])
def test_numbers_and_texts_that_have_no_bytes(wrong: Any) -> None:
    with pytest.raises(DataError, match="cannot travel"):
        pairs.encode(wrong)


def test_values_come_back(tmp_path: Path) -> None:
    values = [None, True, -5, 2.5, "ä", b"\0", [1, [2, "x"]], {"a": [1.5], 3: None}]
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 2), np.uint8), np.array(True)]
    writer = Writer(str(tmp_path / "f"))
    writer.write("key", map(value_of, [*values, *arrays, (1, (2,)), np.float64(0.5)]))
    segment = writer.end_segment(0)
    writer.close()
    ((key, back),) = read(segment)
    assert key == "key" and back[: len(values)] == values and back[-2:] == [[1, [2]], 0.5]
    for one, other in zip(arrays, back[len(values) : -2], strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)
        other[...] = 0  # it may be written into


def test_many_files_are_merged_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "FAN", 3)
    monkeypatch.setattr(pairs, "BLOCK", 200)
    draw, segments, expected = random.Random(0), [], {key: [] for key in KEYS}  # type: ignore[var-annotated]
    for number in range(20):
        writer = Writer(str(tmp_path / str(number)))
        for key in sorted(draw.sample(KEYS, draw.randrange(len(KEYS))), key=order):
            values = [(number << 10) + place for place in range(draw.choice([1, 3, 2000]))]
            expected[key] += values
            writer.write(key, values)
        segments.append(writer.end_segment(0))
        writer.close()
    few, written = narrowed(segments, str(tmp_path / "wide"))
    assert len(few) <= 3 and written > 0
    found = [(key, list(values)) for key, values in merged(few)]
    assert found == [(key, expected[key]) for key in sorted(KEYS, key=order) if expected[key]]
    assert [key for key, _ in merged(few)] == [key for key, _ in found], "values need not be read"


def test_a_disk_that_is_full() -> None:
    writer = Writer("/dev/full")
    with pytest.raises(StorageError, match="No space left"):
        writer.write("x", [bytes(100_000)] * 20)
        writer.end_segment(0)
        writer.close()


def test_budgets_and_counters() -> None:
    assert [bytes_of(one) for one in (65536, "64KiB", "1.5 mb", "2GB")] == [65536, 65536, 1_500_000, 2 * 10**9]
    for wrong in ("many", "5 bananas", 100, "nan"):
        with pytest.raises(UsageError, match="memory="):
            bytes_of(wrong)
    both = Counters(items=3, bytes_mapped=1000, bytes_combined=50, map_tasks=2) + Counters(items=1, map_tries=3)
    assert both.items == 4 and "5.0% of the bytes" in str(both) and "2 tasks, 3 tries" in str(both)
