"""Parquet files: every type becomes documented numbers, bad rows and files are named, only wanted columns are read."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import DataError
from cordee.feed.columns import Ragged, joined
from cordee.feed.places import Place, resolve
from cordee.feed.sources.parquet import ParquetReader
from cordee.feed.sources.seam import END
from cordee.feed.sources.types import type_pairs
from cordee.feed.store.build import build
from cordee.feed.store.opened import open_store
from cordee.feed.store.recipe import Recipe
from cordee.feed.store.statistics import Summary, merged, summary_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def written(folder: Path, table: Any, name: str = "a", **options: Any) -> Place:
    pq.write_table(pa.table(table) if isinstance(table, dict) else table, folder / f"{name}.parquet", **options)
    return resolve(folder / f"{name}.parquet")[0]


def everything(reader: ParquetReader, *places: Place) -> dict[str, list[Any]]:
    schema = reader.schema(places)
    found = [chunk.columns for place in places for chunk in reader.chunks(place, schema)]
    return {name: joined([columns[name] for columns in found]).tolist() if found else [] for name in schema}


def lists(columns: Sequence[Any]) -> list[Any]:
    return [np.asarray(one).tolist() for one in columns]


EACH = {
    "int32": (pa.array([1, 2], "int32"), "int32", [1, 2]),
    "uint64": (pa.array([2**64 - 1, 0], "uint64"), "uint64", [2**64 - 1, 0]),
    "wide": (pa.array([2**53 + 1, -(2**63)]), "int64", [2**53 + 1, -(2**63)]),
    "half": (pa.array(np.array([1.5, 2], np.float16)), "float16", [1.5, 2]),
    "small with missing": (pa.array([1, None], "int16"), "float32", [1, None]),
    "large with missing": (pa.array([1, None], "int64"), "float64", [1, None]),
    "float with missing": (pa.array([1.5, None], "float32"), "float32", [1.5, None]),
    "bool": (pa.array([True, False]), "bool", [True, False]),
    "bool with missing": (pa.array([True, None]), "float32", [1, None]),
    "null": (pa.nulls(2), "float32", [None, None]),
    "decimal": (pa.array([decimal.Decimal("1.25"), None], pa.decimal128(10, 2)), "float64", [1.25, None]),
    "date": (pa.array([datetime.date(1970, 1, 2), None]), "float64", [86400, None]),
    "timestamp": (pa.array([1_500, None], pa.timestamp("ms", "Europe/Paris")), "float64", [1.5, None]),
    "time": (pa.array([datetime.time(0, 1), None], pa.time64("us")), "float64", [60, None]),
    "duration": (pa.array([2_500_000, None], pa.duration("us")), "float64", [2.5, None]),
    "text": (pa.array(["ü", None]), "text (any length)", ["ü", ""]),
    "large text": (pa.array(["a", "bc"], pa.large_string()), "text (any length)", ["a", "bc"]),
    "dictionary": (pa.array(["x", "y"]).dictionary_encode(), "text (any length)", ["x", "y"]),
    "numbers in a dictionary": (pa.array([7, 8]).dictionary_encode(), "int64", [7, 8]),
    "bytes": (pa.array([b"\x01\x02", None]), "uint8 (any length)", [[1, 2], []]),
    "fixed bytes": (pa.array([b"ab", b"cd"], pa.binary(2)), "uint8 (2,)", [[97, 98], [99, 100]]),
    "list": (pa.array([[1.5], [2, 3]]), "float64 (any length)", [[1.5], [2, 3]]),
    "list with missing": (pa.array([[1, 2], None], pa.list_(pa.uint8())), "uint8 (any length)", [[1, 2], []]),
    "fixed list": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)), "int16 (2,)", [[1, 2], [3, 4]]),
    "fixed list with missing": (
        pa.array([None, [3, 4]], pa.list_(pa.float32(), 2)),
        "float32 (2,)",
        [[None, None], [3, 4]],
    ),
    "image": (
        pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.uint8(), 2), 2)),
        "uint8 (2, 2)",
        [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
    ),
}


@pytest.mark.parametrize("name", EACH)
def test_types(tmp_path: Path, name: str) -> None:
    array, kind, values = EACH[name]
    place = written(tmp_path, {"x": array, "n": [1, 2]})
    reader = ParquetReader()
    assert str(reader.schema([place])["x"]) == kind
    found = everything(reader, place)["x"]
    if "text" in kind:
        assert found == values
    elif "any length" in kind:
        assert lists(found) == values
    else:
        assert np.array_equal(np.array(found, float), np.array(values, float), equal_nan=True)
        assert kind in ("int64", "uint64") or found is not None
        assert found == values or None in np.array(values, object).reshape(-1)


def test_row_groups_in_parts_from_anywhere(tmp_path: Path) -> None:
    rows = 10_000
    table = {"i": np.arange(rows), "t": [f"w{i}" for i in range(rows)], "v": [[i] * (i % 3) for i in range(rows)]}
    place = written(tmp_path, table, row_group_size=3000)
    for size in (1000, 30_000, 1 << 30):
        reader = ParquetReader(chunk=size)
        schema = reader.schema([place])
        chunks = list(reader.chunks(place, schema))
        assert sum(chunk.rows for chunk in chunks) == rows == chunks[-1].next
        assert joined([chunk.columns["i"] for chunk in chunks]).tolist() == list(range(rows))
        assert joined([chunk.columns["t"] for chunk in chunks]).tolist() == table["t"]
        assert lists(joined([chunk.columns["v"] for chunk in chunks]).tolist()) == table["v"]
        for at in {0, len(chunks) // 2, len(chunks) - 1}:
            again = list(reader.chunks(place, schema, chunks[at].next))
            assert [one.next for one in again] == [one.next for one in chunks[at + 1 :]]
            assert all(
                np.array_equal(one.columns["i"], other.columns["i"])
                for one, other in zip(again, chunks[at + 1 :], strict=True)
            )
    assert len(list(ParquetReader(chunk=1 << 30).chunks(place, schema))) == 4
    for start in (1, 2999, 3001, rows - 1, rows):  # where chunks of another size ended
        chunks = list(ParquetReader(chunk=30_000).chunks(place, schema, start))
        assert [i for one in chunks for i in one.columns["i"].tolist()] == list(range(start, rows))
        assert [t for one in chunks for t in lists(one.columns["v"].tolist())] == table["v"][start:]


def test_row_groups_are_parts_of_a_build(tmp_path: Path) -> None:
    place = written(tmp_path, {"i": np.arange(100), "n": [None, *range(99)]}, row_group_size=30)
    assert ParquetReader().edges(place, {}) == [0, 30, 60, 90, 100]
    recipe = Recipe(ParquetReader(), (replace(place, size=2**22),))
    assert [(one.start, one.stop) for one in recipe.spans] == [(0, 30), (30, 60), (60, 90), (90, END)]
    build(recipe, tmp_path / "out", processes=2, durable=False)
    rows = open_store(tmp_path / "out").sets["train"].rows(np.arange(100))
    assert rows["i"].tolist() == list(range(100)) and rows["n"].tolist()[1:] == list(range(99))
    assert ParquetReader(on_error="skip").edges(place, {}) == ()


def test_only_wanted_columns_are_read(tmp_path: Path) -> None:
    place = written(tmp_path, {"a.b": [1, 2], "s": [{"x": 1}, {"x": 2}], "c": ["x", "y"]})
    assert everything(ParquetReader(columns=("c", "a.b")), place) == {"c": ["x", "y"], "a.b": [1, 2]}
    with pytest.raises(DataError, match=r"column s is struct<x: int64>, .* columns=\[...\].*flatten"):
        ParquetReader().schema([place])
    with pytest.raises(DataError, match="columns names 'z', which no column is called"):
        ParquetReader(columns=("z",)).schema([place])


def test_types_of_the_users(tmp_path: Path) -> None:
    place = written(
        tmp_path, {"e": [[1.0, 2.0], [3.0, 4.0]], "raw": [b"abcd", b"efgh"], "n": ["1", "2"], "f": [1.0, 2.0]}
    )
    reader = ParquetReader(types=type_pairs({"e": "float32 (2,)", "raw": "uint8 (2, 2)", "n": "int8", "f": "int64"}))
    found = everything(reader, place)
    assert found["e"] == [[1, 2], [3, 4]] and found["n"] == [1, 2] and found["f"] == [1, 2]
    assert found["raw"] == [[[97, 98], [99, 100]], [[101, 102], [103, 104]]]
    bad = written(tmp_path, {"e": [[1.0, 2.0], [3.0]], "raw": [b"abcd", b"abc"], "n": ["1", "x"], "f": [1.5, 2.0]}, "b")
    schema = reader.schema([place])
    for name, message in (
        ("e", r"row 2: column e has 1 entries, where float32 \(2,\) needs 2"),
        ("raw", r"row 2: column raw has 3 entries, where uint8 \(2, 2\) needs 4"),
        ("n", "row 2: column n is 'x', which is not int8"),
        ("f", "row 1: column f is 1.5, which is not int64"),
    ):
        one = ParquetReader(columns=(name,), types=reader.types)
        with pytest.raises(DataError, match=message):
            list(one.chunks(bad, {name: schema[name]}))
    skipping = ParquetReader(types=reader.types, on_error="skip")
    (chunk,) = skipping.chunks(bad, schema)
    assert chunk.rows == 0 and [fault.row for fault in chunk.faults] == [1, 2] and chunk.next == 2


def test_types_are_those_of_all_files(tmp_path: Path) -> None:
    one = written(tmp_path, {"a": pa.array([1, 2], "int32"), "b": [1, 2], "c": pa.nulls(2), "d": ["x", "y"]}, "a")
    two = written(tmp_path, {"d": ["z"], "c": [3], "b": [1.5], "a": pa.array([None], "int64")}, "b")
    schema = ParquetReader().schema([one, two])
    assert {name: str(kind) for name, kind in schema.items()} == {
        "a": "float64",
        "b": "float64",
        "c": "int64",
        "d": "text (any length)",
    }
    with pytest.raises(DataError, match=r"a.parquet, row 1: column c is missing, and int64 has no missing value"):
        everything(ParquetReader(), one, two)
    other = written(tmp_path, {"a": ["x"], "b": [1.0], "c": [1], "d": ["x"]}, "c")
    with pytest.raises(DataError, match=r"column a is int32 in .*a.parquet and string in .*c.parquet: .*'text'"):
        ParquetReader().schema([one, other])
    texts = ParquetReader(types=type_pairs({"a": "text"}), columns=("a",))
    assert everything(texts, one, other)["a"] == ["1", "2", "x"]


def test_files_that_do_not_belong(tmp_path: Path) -> None:
    good = written(tmp_path, {"a": [1, 2]})
    other = written(tmp_path, {"a": [1], "z": [2]}, "b")
    (tmp_path / "c.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    (tmp_path / "d.parquet").write_bytes(b"")
    cut, empty = resolve([tmp_path / "c.parquet", tmp_path / "d.parquet"])
    for place, message in (
        (other, "b.parquet: it has also z"),
        (cut, "c.parquet, row 1: the file is no Parquet, or cut short"),
        (empty, "d.parquet, row 1: the file is no Parquet, or cut short"),
    ):
        with pytest.raises(DataError, match=message):
            ParquetReader().schema([good, place])
        skipping = ParquetReader(on_error="skip")
        schema = skipping.schema([place, good] if place is not other else [good, place])
        (chunk,) = skipping.chunks(place, schema)
        assert chunk.rows == 0 and len(chunk.faults) == 1 and not list(skipping.chunks(place, schema, chunk.next))
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[4:30] = b"\xff" * 26
    (tmp_path / "a.parquet").write_bytes(bytes(damaged))
    with pytest.raises(DataError, match="damaged"):
        everything(ParquetReader(), good)


def test_folders_are_columns(tmp_path: Path) -> None:
    years, kinds = [2023, 2023, 2024, 2024], ["a/b", None, "a/b", "ü"]
    table = pa.table({"x": [0, 1, 2, 3], "year": years, "kind": pa.array(kinds), "zip": ["01", "02", "01", "02"]})
    pq.write_to_dataset(table, tmp_path / "all", partition_cols=["year", "kind", "zip"])
    places = resolve(tmp_path / "all", ParquetReader.endings)
    found = everything(ParquetReader(), *places)
    expected = pq.read_table(tmp_path / "all").to_pydict()
    assert list(found) == list(expected) == ["x", "year", "kind", "zip"]
    for rows in zip(found["x"], found["year"], found["kind"], found["zip"], strict=True):
        at = rows[0]
        assert rows == (at, years[at], kinds[at] or "", int(table["zip"][at].as_py()))
    assert str(ParquetReader().schema(places)["year"]) == "int64"
    texts = ParquetReader(("zip", "year"), type_pairs({"zip": "text", "year": "float32"}))
    assert sorted(zip(*everything(texts, *places).values(), strict=True)) == sorted(
        zip(table["zip"].to_pylist(), map(float, years), strict=True)
    )
    below = resolve([tmp_path / "all" / "year=2023", tmp_path / "all" / "year=2024"], ParquetReader.endings)
    assert list(everything(ParquetReader(), *below)) == ["x", "kind", "zip"]
    assert "year" in everything(ParquetReader(), *resolve(f"{tmp_path}/all/year=*", ParquetReader.endings))
    assert list(everything(ParquetReader(), *resolve([place.url for place in places]))) == ["x"]


def test_folders_that_say_too_little(tmp_path: Path) -> None:
    for folder, table in (("n=1", {"x": [1]}), ("n=two", {"x": [2]}), ("m=1", {"x": [3]})):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table(table), tmp_path / folder / "a.parquet")
    other, one, two = resolve(tmp_path)
    assert everything(ParquetReader(), one, two) == {"x": [1, 2], "n": ["1", "two"]}
    with pytest.raises(DataError, match=r"m=1/a.parquet: it has no n and also m: not the columns x, n"):
        ParquetReader().schema([one, other])
    numbers = ParquetReader(types=type_pairs({"n": "int8"}))
    with pytest.raises(DataError, match=r"n=two/a.parquet, row 1: by the names of its folders, column n is 'two'"):
        everything(numbers, one, two)
    pq.write_table(pa.table({"x": [1], "n": [7]}), tmp_path / "n=1" / "a.parquet")
    assert everything(ParquetReader(), resolve(tmp_path / "n=*")[0]) == {"x": [1], "n": [7]}


@pytest.mark.parametrize("texts", [["a", None, "", "ü", "a"] * 20, [f"{at}{'x' * 50}" for at in range(3_000)]])
def test_texts_that_come_again_are_counted_as_others_are(tmp_path: Path, texts: list[str | None]) -> None:
    place = written(tmp_path, {"t": texts}, row_group_size=90, use_dictionary=True)
    reader = ParquetReader(chunk=500)
    assert everything(reader, place)["t"] == [one or "" for one in texts]
    told = Summary()
    for chunk in reader.chunks(place, reader.schema([place])):
        column = chunk.columns["t"]
        assert isinstance(column, Ragged)
        assert set(column.different or ()) == {one.encode() for one in column.tolist() if one}
        told = merged(told, summary_of(column, np.zeros(0, np.uint64)))
    assert told.describe()["distinct"] == (2 if len(texts) == 100 else "more than 1000")
    assert told.missing == sum(not one for one in texts)
