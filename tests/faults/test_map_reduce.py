"""A map-reduce over processes gives what one process gives, whatever the memory, the parts, and who is killed."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordee
from cordee.core.errors import DataError, UsageError
from cordee.feed.exchange import cutting
from cordee.feed.exchange.mapreduce import Stream
from cordee.feed.store.recipe import Recipe
from counting import Dying, squares, total, words
from rows_here import chain
from stores import KINDS, built, places_of
from stores import Counter as Rows


def skewed(folder: Path, files: int = 4, lines: int = 1500) -> list[Path]:
    """Texts in which few words are most of them."""
    draw, paths = random.Random(1), []
    names = [f"w{number:04d}" for number in range(3000)]
    weights = [1 / (1 + number) ** 1.3 for number in range(3000)]
    for number in range(files):
        path = folder / f"text{number}"
        path.write_text("\n".join(" ".join(draw.choices(names, weights, k=10)) for _ in range(lines)) + "\nlast")
        paths.append(path)
    return paths


def counted(paths: list[Path]) -> dict[str, int]:
    whole = Counter(word for path in paths for word in path.read_text().split())
    return dict(sorted(whole.items()))


@pytest.fixture
def left_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary files go to a folder of the test's own, and are gone at the end."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    yield
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.usefixtures("left_nothing")
def test_words_of_a_text(tmp_path: Path) -> None:
    paths = skewed(tmp_path)
    expected = counted(paths)
    plain = cordee.data.map_reduce(paths, words, total, processes=0)
    assert dict(plain) == expected and list(plain) == sorted(expected)
    several = cordee.data.map_reduce(paths, words, total, combine=total, processes=2, partitions=3)
    assert list(several.items()) == list(plain.items())
    done, bare = several.counters, plain.counters
    assert done.items == 4 * 1501 and done.pairs_mapped == bare.pairs_mapped == sum(expected.values())
    assert done.bytes_mapped == bare.bytes_mapped == bare.bytes_combined
    assert (done.keys, done.map_tasks, done.map_tries) == (len(expected), 4, 4)
    assert (done.reduce_tasks, done.reduce_tries) == (3, 3)
    assert done.spills == done.bytes_spilled == 0
    assert f"{done.keys:,} keys" in str(done)


@pytest.mark.usefixtures("left_nothing")
def test_combining_moves_a_tenth_of_the_bytes_of_a_skewed_text(tmp_path: Path) -> None:
    paths = skewed(tmp_path, files=2, lines=3000)
    combined = cordee.data.map_reduce(paths, words, total, combine=total, processes=0)
    assert dict(combined) == counted(paths)
    assert combined.counters.bytes_combined <= 0.1 * combined.counters.bytes_mapped


@pytest.mark.usefixtures("left_nothing")
@pytest.mark.parametrize("combine", [None, total])
def test_a_small_memory_changes_nothing(tmp_path: Path, combine: Any) -> None:
    paths = skewed(tmp_path, files=2)
    some = cordee.data.map_reduce(paths, words, total, combine, processes=0, partitions=5, memory="64KiB")
    assert dict(some) == counted(paths)
    assert some.counters.spills > 2 and some.counters.bytes_spilled > 10_000


@pytest.mark.usefixtures("left_nothing")
@pytest.mark.parametrize("stage", ["map", "reduce"])
def test_a_process_that_is_killed_changes_nothing(tmp_path: Path, stage: str) -> None:
    paths, dying = skewed(tmp_path, lines=300), Dying(stage, str(tmp_path / "killed"))
    result = cordee.data.map_reduce(paths, dying.words, dying.total, total, processes=2, partitions=2, memory="64KiB")
    assert dict(result) == counted(paths)
    tries = {"map": (5, 2), "reduce": (4, 3)}[stage]
    assert (result.counters.map_tries, result.counters.reduce_tries) == tries
    assert result.counters.pairs_mapped == sum(counted(paths).values()), "tries that died do not count"


@pytest.mark.usefixtures("left_nothing")
def test_lines_are_in_one_piece_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However files are cut; also without an end, with ends of Windows, and bytes that are no text."""
    raw = b"one\r\n\n\xff\xfe\nlonger line here\nx\ny"
    (tmp_path / "text").write_bytes(raw)
    (tmp_path / "none").write_bytes(b"")
    expected = Counter(line.decode("utf-8", "replace").rstrip("\r") for line in raw.split(b"\n"))
    for size in (1, 2, 3, 7, 100):
        monkeypatch.setattr(cutting, "FILE_BYTES", size)
        files = [tmp_path / "text", tmp_path / "none"]
        assert cordee.data.map_reduce(files, lambda line: [(line, 1)], total, processes=0) == expected, size


@pytest.mark.usefixtures("left_nothing")
def test_items_and_a_stream() -> None:
    by_rest = cordee.data.map_reduce(range(1000), squares, total, processes=2)
    assert by_rest == {rest: sum(n * n for n in range(rest, 1000, 7)) for rest in range(7)}
    lists = cordee.data.map_reduce(
        (("a", n) for n in range(300)), lambda one: [tuple(one)], lambda key, values: list(values), processes=0
    )
    assert lists == {"a": list(range(300))}, "values come in the order of the items"
    pairs = cordee.data.map_reduce(
        range(10), lambda n: [(-n, n)], lambda key, values: next(values), processes=0, stream=True
    )
    assert isinstance(pairs, Stream) and pairs.counters.keys == 10
    assert list(pairs) == [(-n, n) for n in range(9, -1, -1)]
    cordee.data.map_reduce(range(10), squares, total, processes=0, stream=True).close()
    assert cordee.data.map_reduce([], words, total, processes=0) == {}


def sums(batch: dict[str, np.ndarray]) -> Iterator[tuple[int, int]]:
    """Of a batch of rows: by remainder."""
    for rest in range(3):
        yield rest, batch["id"][batch["id"] % 3 == rest].sum()


@pytest.mark.usefixtures("left_nothing")
def test_rows_of_stores_chains_and_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "ROWS", 16)
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    expected = {rest: sum(range(rest, 70, 3)) for rest in range(3)}
    built(Recipe(Rows(7, kinds=KINDS), places_of(tmp_path / "in", [50, 20]), shard_bytes=500), tmp_path / "s")
    data = cordee.data.store(tmp_path / "s")
    made = chain(id=list(range(70)), word=[f"{n % 3}" for n in range(70)]).split(0.5, 0.5, 0.0)
    arrays = cordee.data.arrays(id=np.arange(70))
    for source in (data.train, made, arrays.train):
        assert cordee.data.map_reduce(source, sums, total, processes=0) == expected
    counts = cordee.data.map_reduce(made, lambda rows: [(one, 1) for one in rows["word"]], total, processes=0)
    assert counts == {"0": 24, "1": 23, "2": 23}
    with pytest.raises(DataError, match=r"such as data\.train"):
        cordee.data.map_reduce(arrays, sums, total)


@pytest.mark.usefixtures("left_nothing")
def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    def run(*given: Any, **more: Any) -> None:
        cordee.data.map_reduce(*given, processes=0, **more)

    for source, map, message in (
        (range(2), lambda n: None, "map gave NoneType"),
        (range(2), lambda n: "ab", "map gave str"),
        (range(2), lambda n: [1], "pairs"),
        (range(2), lambda n: [({1}, 1)], "keys may be"),
        (range(2), lambda n: [(1, {1})], "values may be"),
        (range(2), lambda n: [(1, 2**70)], "cannot travel"),
        ([object()], words, "item 1 of the source"),
        (["no such file"], words, "no file or folder"),
        (7, words, "source is int"),
    ):
        with pytest.raises(DataError, match=message):
            run(source, map, total)
    with pytest.raises(DataError, match="reduce of key 1:"):
        run([1], lambda n: [(1, 1)], lambda key, values: {2})
    with pytest.raises(DataError, match="combine of key 1:"):
        run([1, 2], lambda n: [(1, 1), (1, 1)], total, combine=lambda key, values: object())
    with pytest.raises(ZeroDivisionError):
        run([1], lambda n: [(1, 1)], lambda key, values: 1 / 0)
    with pytest.raises(UsageError, match="processes=-1"):
        cordee.data.map_reduce([1], words, total, processes=-1)


@pytest.mark.usefixtures("left_nothing")
def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    before = cordee.data.map_reduce(range(9), squares, total, processes=0, stream=True)
    left = tmp_path / "tmp" / "cordee-map-reduce-killed"
    left.mkdir()
    (left / ".lock").touch()
    (left / "map-000000-run-0").write_bytes(bytes(1000))
    assert dict(cordee.data.map_reduce(range(9), squares, total, processes=0)) == dict(before)
    assert not left.exists(), "and one that is in use was left alone"


@pytest.mark.usefixtures("left_nothing")
def test_shakespeare() -> None:
    path = Path(os.environ.get("CORDEE_TEST_DATA", "")) / "tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip("CORDEE_TEST_DATA names no folder with tinyshakespeare.txt")
    result = cordee.data.map_reduce([path], words, total, total, processes=2)
    assert dict(result) == counted([path])
