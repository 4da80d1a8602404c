"""Stores: what is written is read again, whatever the number of processes, chunks and shards."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Kind, Ragged, Schema
from cordee.feed.places import Place
from cordee.feed.sources.seam import END, Chunk
from cordee.feed.store.build import build, spread_for
from cordee.feed.store.layout import file_names
from cordee.feed.store.opened import open_store
from cordee.feed.store.recipe import Recipe
from stores import (
    KINDS,
    Counter,
    Divided,
    LetsGo,
    Thirds,
    all_rows,
    built,
    check_rows,
    contents,
    opened,
    place_of,
    places_of,
)

FIXED = {name: kind for name, kind in KINDS.items() if not kind.ragged}


@pytest.mark.parametrize("shard_bytes", [1, 500, 10**9])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_rows_of_all_kinds_come_back_in_their_order(tmp_path: Path, chunk: int, shard_bytes: int) -> None:
    places = places_of(tmp_path / "in", [5, 0, 33, 1])
    manifest = built(Recipe(Counter(chunk), places, shard_bytes=shard_bytes), tmp_path / "out")
    assert manifest.rows("train") == 39
    store = open_store(tmp_path / "out")
    store.verify()
    check_rows(store.sets["train"], np.arange(39))
    some = np.array([38, 0, 7, 7, 20])
    words = store.sets["train"].rows(some)["words"]
    assert isinstance(words, Ragged)
    assert words.tolist() == ["wört 38", "", "", "", "wört 20"]


def test_sets_are_told_apart_and_keep_their_order(tmp_path: Path) -> None:
    recipe = Recipe(Counter(4), places_of(tmp_path / "in", [20, 10]), split=Thirds(), shard_bytes=300)
    manifest = built(recipe, tmp_path / "out")
    assert {name: manifest.rows(name) for name in manifest.sets} == {"train": 20, "validation": 10}
    numbers = np.arange(30)
    check_rows(opened(tmp_path / "out"), numbers[numbers % 3 != 0])
    check_rows(opened(tmp_path / "out", "validation"), numbers[numbers % 3 == 0])


def test_the_store_is_the_same_for_any_number_of_processes(tmp_path: Path) -> None:
    recipe = Recipe(Counter(5), places_of(tmp_path / "in", [23] * 5, 2**20), split=Thirds(), shard_bytes=700)
    for processes in (0, 1, 2):
        built(recipe, tmp_path / str(processes), processes=processes)
    assert contents(tmp_path / "0") == contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(contents(tmp_path / "0")) > 5 * 3 * len(KINDS)


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_the_store_is_the_same_for_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    places = places_of(tmp_path / "in", [23] * 5, 2**20)
    built(Recipe(Counter(5), places, split=Thirds(), shard_bytes=700), tmp_path / "one", processes=1)
    monkeypatch.setattr("cordee.feed.store.build.usable_cores", lambda: range(cores))
    monkeypatch.setattr("cordee.feed.store.build.cpu_quota", lambda: None)
    monkeypatch.setattr("cordee.feed.threads.usable_cores", lambda: range(cores))
    recipe = Recipe(LetsGo(5), places, split=Thirds(), shard_bytes=700)
    assert spread_for(recipe, len(places)) == (0, min(cores, 4))
    built(recipe, tmp_path / "threads", processes=None)
    assert contents(tmp_path / "one") == contents(tmp_path / "threads")


def test_a_large_file_is_cut_into_parts(tmp_path: Path) -> None:
    """Its rows are the same ones, in the same sets, as if one process had read it from its beginning to its end."""

    class ByOrigin(Thirds):
        def sets(self, place: Place, columns: Columns, origins: NDArray[np.uint64]) -> NDArray[np.uint8]:
            return (origins % np.uint64(3) == 0).astype(np.uint8)

    places = (*places_of(tmp_path / "in", [5, 203], 2**23), place_of(tmp_path / "small", 208, 7))
    whole = Recipe(Counter(10), places, split=ByOrigin(), shard_bytes=700)
    parts = Recipe(Divided(10), places, split=ByOrigin(), shard_bytes=700)
    assert [(len(one.places), one.start) for one in whole.spans] == [(1, 0), (1, 0), (1, 0)]
    assert [(one.start, one.stop) for one in parts.spans] == [
        (0, END),
        *((at, at + 50) for at in (0, 50, 100, 150)),
        (200, END),
        (0, END),
    ]
    assert sum(sum(one.sizes) for one in parts.spans) == whole.nbytes
    for recipe, name in ((whole, "whole"), (parts, "parts")):
        built(recipe, tmp_path / name)
    for name in ("train", "validation"):
        ids = [all_rows(opened(tmp_path / one, name))["id"] for one in ("whole", "parts")]
        assert len(ids[0]) > 50
        np.testing.assert_array_equal(*ids)


def test_batches_are_gathered_into_memory_that_is_given(tmp_path: Path) -> None:
    recipe = Recipe(Counter(kinds=FIXED), places_of(tmp_path / "in", [500, 3, 700], 2**20), shard_bytes=2_000)
    built(recipe, tmp_path / "out")
    source = opened(tmp_path / "out")
    assert source.traits.rows is not None  # shards of any length leave holes
    buffers = source.buffers(8)
    ids = np.array([1202, 0, 500, 499, 502, 503, 41])
    batch = source.gather(ids, buffers)
    assert batch["id"].tolist() == ids.tolist()
    assert batch["id"].data_ptr() == buffers["id"].data_ptr()
    assert batch["image"].dtype == torch.uint8 and batch["image"].shape == (7, 2, 2)
    table = source.traits.table.gather(source.traits.rows[ids])
    assert torch.equal(table["x"], batch["x"])
    with pytest.raises(IndexError, match="0 to 1202"):
        source.gather(np.array([1203]))
    again = pickle.loads(pickle.dumps(source))
    assert torch.equal(again.gather(ids)["x"], batch["x"]) and again.fingerprint == source.fingerprint


def test_columns_of_any_length_are_refused_in_a_batch_with_advice(tmp_path: Path) -> None:
    places = places_of(tmp_path / "in", [5])
    for name, advice in (("words", "leave words out"), ("tokens", r"\.pad\('tokens', length\)")):
        out = tmp_path / name
        built(Recipe(Counter(kinds={"id": KINDS["id"], name: KINDS[name]}), places), out)
        with pytest.raises(DataError, match=advice):
            opened(out).gather(np.array([1]))
        assert opened(out).traits.table is None


ODD = ["a/b", "ü", "..", ".", "", " ", "x" * 300, "x" * 299 + "y", "a\nb", "CON", "words.0", "a%2Fb"]
ODD_KINDS = {name: Kind("int64") for name in ODD} | {"words": KINDS["words"]}


class Odd(Counter):
    """Its columns have strange names."""

    def schema(self, places: Sequence[Place]) -> Schema:
        return ODD_KINDS

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        for chunk in super().chunks(place, schema, start):
            odd: Columns = {name: np.full(chunk.rows, at) for at, name in enumerate(ODD)}
            yield chunk._replace(columns=odd | {"words": chunk.columns["words"]})


def test_columns_may_be_called_anything(tmp_path: Path) -> None:
    names = [file for name, kind in ODD_KINDS.items() for file in file_names(name, kind)]
    assert len(set(names)) == len(ODD) + 2 and all(len(one) < 200 and "/" not in one for one in names)
    built(Recipe(Odd(), places_of(tmp_path / "in", [3])), tmp_path / "out")
    rows = all_rows(opened(tmp_path / "out"))
    assert list(rows) == [*ODD, "words"]
    assert [rows[name].tolist() for name in ODD] == [[at] * 3 for at in range(len(ODD))]


def test_the_files_are_plain_npy(tmp_path: Path) -> None:
    built(Recipe(Counter(), places_of(tmp_path / "in", [7])), tmp_path / "out")
    (path,) = (tmp_path / "out").glob("train-*/x.npy")
    np.testing.assert_array_equal(np.load(path)[:, 1], np.arange(7) * 0.5)
    assert np.load(path, mmap_mode="r").offset == 4096


def test_statistics_and_faults_are_in_the_manifest(tmp_path: Path) -> None:
    recipe = Recipe(Counter(3, bad=(4, 11)), places_of(tmp_path / "in", [10, 10]), shard_bytes=200)
    manifest = built(recipe, tmp_path / "out")
    good = np.array([one for one in range(20) if one not in (4, 11)])
    assert manifest.skipped == 2 and manifest.faults == ("00000, row 4: bad", "00001, row 11: bad")
    assert manifest.skipped_in == {"00000": 1, "00001": 1}
    ids = manifest.statistics["id"]
    assert (ids["count"], ids["missing"], ids["least"], ids["most"]) == (18, 0, 0, 19)
    assert ids["mean"] == pytest.approx(good.mean()) and ids["std"] == pytest.approx(good.std())
    assert manifest.statistics["words"] == {"count": 18, "missing": 3, "longest": 8, "distinct": 15}
    assert manifest.statistics["tokens"]["longest"] == 4


def test_a_second_build_of_the_same_does_nothing(tmp_path: Path) -> None:
    places = places_of(tmp_path / "in", [7])
    out = tmp_path / "out"
    first = built(Recipe(Counter(), places), out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.npy")}
    assert built(Recipe(Counter(), places), out) == first
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.npy")} == before
    other = Recipe(Counter(bad=(1,)), places)
    with pytest.raises(DataError, match=r"is a store already.*--replace"):
        built(other, out)
    assert built(other, out, replace=True).rows("train") == 6
    check_rows(opened(out), np.array([0, 2, 3, 4, 5, 6]))


def test_folders_that_are_no_stores_are_left_alone(tmp_path: Path) -> None:
    recipe = Recipe(Counter(), places_of(tmp_path / "in", [7]))
    for names in (
        ["photo.jpg"],
        ["train-images/1.png", ".lock"],
        ["manifest.json", "train-000000-000/x"],
        ["building/a"],
    ):
        out = tmp_path / names[0].replace("/", "-")
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text("{}")
        with pytest.raises(DataError, match="no store, and not empty"):
            built(recipe, out, replace=True)
        assert all((out / name).exists() for name in names)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file"):
        built(recipe, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    built(recipe, tmp_path / "empty")


def test_nothing_to_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no files to read"):
        Recipe(Counter(), ())
    with pytest.raises(DataError, match=r"no rows: 1 files gave none; 2 rows could not be read, such as 00000, row 0"):
        built(Recipe(Counter(bad=(0, 1)), places_of(tmp_path / "in", [2])), tmp_path / "out")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "was cut short"),
        (lambda path: path.write_bytes(b"?" * path.stat().st_size), "does not hold 7 rows of float32"),
    ],
)
def test_damage_is_seen_when_a_store_is_opened(tmp_path: Path, harm, message: str) -> None:  # type: ignore[no-untyped-def]
    built(Recipe(Counter(), places_of(tmp_path / "in", [7])), tmp_path / "out")
    (path,) = (tmp_path / "out").glob("train-*/x.npy")
    harm(path)
    with pytest.raises(DataError, match=message):
        open_store(tmp_path / "out")


def test_one_wrong_bit_is_seen_by_verify(tmp_path: Path) -> None:
    built(Recipe(Counter(), places_of(tmp_path / "in", [7])), tmp_path / "out")
    (path,) = (tmp_path / "out").glob("train-*/words.1.npy")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    store = open_store(tmp_path / "out")
    with pytest.raises(DataError, match=r"words\.1\.npy is damaged"):
        store.verify()


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        open_store(tmp_path / "none")
    with pytest.raises(DataError, match="is no store"):
        open_store(tmp_path)
    (tmp_path / "manifest.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match="no manifest of a store"):
        open_store(tmp_path)


def test_types_that_torch_lacks_are_widened_or_refused(tmp_path: Path) -> None:
    class Typed(Counter):
        def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
            for chunk in super().chunks(place, schema, start):
                ids: Any = chunk.columns["id"]
                yield chunk._replace(columns={"id": ids.astype(schema["id"].dtype)})

    places = places_of(tmp_path / "in", [7])
    for given, stored in (("uint16", "int32"), ("uint32", "int64"), ("uint64", "int64"), ("float16", "float16")):
        built(Recipe(Typed(kinds={"id": Kind(given)}), places), tmp_path / given)
        batch = opened(tmp_path / given).gather(np.arange(7))
        assert batch["id"].tolist() == list(range(7)) and str(batch["id"].dtype) == f"torch.{stored}"
    for refused in ("datetime64[s]", "object", "float128", "nonsense"):
        with pytest.raises(DataError, match=r"the column id holds"):
            build(Recipe(Counter(kinds={"id": Kind(refused)}), places), tmp_path / "refused")
        assert not (tmp_path / "refused").exists()
