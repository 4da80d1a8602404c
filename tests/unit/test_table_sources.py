"""Tables in memory and rows of databases, as the same columns as files give."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordee.core.errors import DataError
from cordee.feed.columns import Ragged, joined
from cordee.feed.sources import sql as sql_module
from cordee.feed.sources import tables
from cordee.feed.sources.sql import SqlReader
from cordee.feed.sources.tables import TableReader, table_of
from cordee.feed.sources.types import type_pairs

pa = pytest.importorskip("pyarrow")


def everything(reader: Any) -> dict[str, list[Any]]:
    schema = reader.schema(reader.places)
    found = [chunk.columns for chunk in reader.chunks(reader.places[0], schema)]
    return {name: joined([columns[name] for columns in found]).tolist() for name in schema}


def kinds(reader: Any) -> dict[str, str]:
    return {name: str(kind) for name, kind in reader.schema(reader.places).items()}


def test_dicts_of_arrays() -> None:
    given = {
        "image": np.arange(12, dtype=np.uint8).reshape(3, 2, 2),
        "tensor": torch.tensor([1.5, 2, 3], requires_grad=True),
        "words": ["a", "bc", None],
        "whole": [1, 2, 3],
        "ragged": [[1], [2, 3], []],
        "own": Ragged.of(["x", "", "y"]),
        "when": np.array(["1970-01-02", "1970-01-03", "NaT"], "datetime64[s]"),
        "strings": np.array(["p", "q", "r"]),
    }
    reader = TableReader(table_of(given))
    assert kinds(reader) == {
        "image": "uint8 (2, 2)",
        "tensor": "float32",
        "words": "text (any length)",
        "whole": "int64",
        "ragged": "float64 (any length)",
        "own": "text (any length)",
        "when": "float64",
        "strings": "text (any length)",
    }
    found = everything(reader)
    assert found["image"] == given["image"].tolist() and found["words"] == ["a", "bc", ""]  # type: ignore[attr-defined]
    assert [one.tolist() for one in found["ragged"]] == [[1], [2, 3], []] and found["own"] == ["x", "", "y"]
    assert found["when"][:2] == [86400, 172800] and np.isnan(found["when"][2]) and found["strings"] == ["p", "q", "r"]


def test_frames_of_pandas() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "f": [1.5, None, 3],
            "i": [1, 2, 3],
            "t": ["x", None, "z"],
            "b": [True, False, True],
            "n": pd.array([1, None, 3], "Int64"),
            "c": pd.Categorical(["a", "b", "a"]),
            "d": pd.to_datetime(["1970-01-02", None, "1970-01-03"]),
            7: [1, 2, 3],
        },
        index=[5, 6, 7],
    )
    reader = TableReader(table_of(frame))
    found = everything(reader)
    assert kinds(reader) == {
        "f": "float64",
        "i": "int64",
        "t": "text (any length)",
        "b": "bool",
        "n": "float64",
        "c": "text (any length)",
        "d": "float64",
        "7": "int64",
    }
    assert found["t"] == ["x", "", "z"] and found["c"] == ["a", "b", "a"] and found["7"] == [1, 2, 3]
    assert np.array_equal(found["n"], [1, np.nan, 3], equal_nan=True)
    assert np.array_equal(found["d"], [86400, np.nan, 172800], equal_nan=True)
    # What it holds counts, not how it lies in memory.
    arrow = TableReader(table_of(pa.table({"i": frame["i"].to_numpy(), "t": ["x", "", "z"]})))
    assert TableReader(table_of(frame), columns=("i", "t")).places[0].mark == arrow.places[0].mark
    with pytest.raises(DataError, match="column m cannot be read"):
        table_of(pd.DataFrame({"m": [1, "x", {}]}))


def test_tables_of_arrow_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHUNK", 1000)
    chunked = pa.concat_tables(
        [pa.table({"i": [1, 2], "t": ["a", "b"]}), pa.table({"i": range(3, 500), "t": ["c"] * 497})]
    )
    reader = TableReader(table_of(chunked))
    schema = reader.schema(reader.places)
    chunks = list(reader.chunks(reader.places[0], schema))
    assert len(chunks) > 3 and joined([chunk.columns["i"] for chunk in chunks]).tolist() == list(range(1, 500))
    again = list(reader.chunks(reader.places[0], schema, chunks[1].next))
    assert [one.next for one in again] == [one.next for one in chunks[2:]]
    before = reader.places[0].mark
    changed = TableReader(table_of(chunked.set_column(0, "i", pa.array([*range(1, 499), 0]))))
    assert changed.places[0].mark != before == TableReader(table_of(chunked.combine_chunks())).places[0].mark


class Dataset:
    """As a data set of Hugging Face looks that has selected some rows of its table."""

    features: Mapping[str, Any] = {}

    def __init__(self, data: Any, ids: list[int]) -> None:
        self.data, self.ids, self.column_names = data, ids, data.column_names

    def __len__(self) -> int:
        return len(self.ids)

    def with_format(self, form: str) -> Dataset:
        assert form == "arrow"
        return self

    def __getitem__(self, rows: slice) -> Any:
        return self.data.take(self.ids[rows])


def test_data_sets_of_hugging_face() -> None:
    data = Dataset(pa.table({"text": ["a", "b", "c"], "label": [0, 1, 2]}), [2, 0])
    assert everything(TableReader(table_of(data))) == {"text": ["c", "a"], "label": [2, 0]}
    with pytest.raises(DataError, match=r"several data sets \(train, test\): give one of them"):
        table_of({"train": data, "test": data})


def test_rows_that_do_not_fit() -> None:
    given = {"a": pa.array(["1", "x", "3"]), "b": np.array([1.0, 2.0, np.nan]), "c": np.arange(3)}
    types = type_pairs({"a": "int64", "b": "int64"})
    with pytest.raises(DataError, match="table, row 2: column a is 'x', which is not int64"):
        everything(TableReader(table_of(given), types=type_pairs({"a": "int64"})))
    reader = TableReader(table_of(given), types=types, on_error="skip")
    assert everything(reader) == {"a": [1], "b": [1], "c": [0]}
    (chunk,) = reader.chunks(reader.places[0], reader.schema(reader.places))
    assert [str(fault) for fault in chunk.faults] == [
        "table, row 2: column a is 'x', which is not int64",
        "table, row 3: column b is missing, and int64 has no missing value",
    ]
    for wrong, message in (
        ({"a": [1, 2], "b": [1]}, "columns differ in length"),
        ({}, "without a column"),
        ({"a": 3}, "column a"),
        ([1, 2], "list is no table: give a frame of pandas"),
        ({"a": np.array([1j])}, "column a cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            table_of(wrong)


# ------------------------------------------------------------- databases


@pytest.fixture
def database(tmp_path: Path) -> Path:
    pytest.importorskip("sqlalchemy")
    path = tmp_path / "data.db"
    with sqlite3.connect(path) as base:
        base.execute("create table t (id integer primary key, x real, n integer, name text, raw blob)")
        rows = [(i, i / 2 if i % 7 else None, i * 3, f"w{i}", bytes([i % 256, 1])) for i in range(1, 501)]
        base.executemany("insert into t values (?, ?, ?, ?, ?)", rows)
    return path


def test_rows_of_a_query(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_module, "ROWS", 64)
    reader = SqlReader("select id, x, name, raw from t where name <> '50%' order by id desc", f"sqlite:///{database}")
    assert kinds(reader) == {
        "id": "int64",
        "x": "float64",
        "name": "text (any length)",
        "raw": "uint8 (any length)",
    }
    found = everything(reader)
    assert found["id"] == list(range(500, 0, -1)) and found["name"][-1] == "w1" and np.isnan(found["x"][-7])
    schema = reader.schema(reader.places)
    chunks = list(reader.chunks(reader.places[0], schema))
    assert [chunk.next for chunk in reader.chunks(reader.places[0], schema, chunks[2].next)] == [
        chunk.next for chunk in chunks[3:]
    ]
    shaped = SqlReader(reader.query, reader.url, type_pairs({"raw": "uint8 (2,)", "x": "float32"}))
    assert everything(shaped)["raw"][-1] == [1, 1] and kinds(shaped)["x"] == "float32"


def test_the_mark_changes_with_the_database(database: Path) -> None:
    query, url = "select * from t order by id", f"sqlite:///{database}"
    before = SqlReader(query, url).places[0]
    with sqlite3.connect(database) as base:
        base.execute("update t set n = -1 where id = 5")
    after = SqlReader(query, url).places[0]
    assert after.mark != before.mark and after.key == before.key
    assert SqlReader(query, url, version="v1").places[0].mark == "v1"


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("select * from t", False),
        ("select * from (select * from t order by id) s", False),
        ("select 'order by id' from t -- order by id", False),
        ("select * from t Order\n By id", True),
        ("with a as (select 1 from (select 2)) select * from a order by (1)", True),
    ],
)
def test_a_query_states_its_order(query: str, ordered: bool) -> None:
    if ordered:
        SqlReader(query, "sqlite://")
    else:
        with pytest.raises(DataError, match=r"end it with ORDER BY .*\n .* ORDER BY id"):
            SqlReader(query, "sqlite://")


def test_no_message_has_the_password(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    secret = SqlReader("select 1 order by 1", "postgresql://me:hunter2@127.0.0.1:1/name?sslpassword=hunter2")
    shown = [repr(secret), secret.key, secret.shown]
    with pytest.raises(DataError) as caught:
        secret.schema(())
    shown.append(str(caught.value))
    with pytest.raises(DataError) as caught:
        SqlReader("select 1 order by 1", "me:hunter2@host").schema(())
    shown.append(str(caught.value))
    assert not any("hunter2" in one for one in shown) and "postgresql://me:***@127.0.0.1:1/name" in shown[2]
    with pytest.raises(DataError, match=r"there is no database .*nothing.db"):
        SqlReader("select 1 order by 1", f"sqlite:///{tmp_path}/nothing.db").schema(())


def test_values_that_do_not_fit(database: Path) -> None:
    with sqlite3.connect(database) as base:  # SQLite keeps any value in any column
        base.execute("update t set n = 'many' where id = 300")
        base.execute("update t set n = null where id = 301")
    query, url = "select id, n from t order by id", f"sqlite:///{database}"
    with pytest.raises(DataError, match="did not answer the query: no such table: u"):
        SqlReader(query.replace("from t", "from u"), url).schema(())
    types = type_pairs({"n": "int32"})
    with pytest.raises(DataError, match="row 300: column n is 'many', which is not int32"):
        everything(SqlReader(query, url, types))
    reader = SqlReader(query, url, types, on_error="skip")
    assert len(everything(reader)["id"]) == 498
    moments = {
        datetime.datetime(1970, 1, 2): 86400.0,
        datetime.date(1970, 1, 3): 172800.0,
        datetime.time(1, 0): 3600.0,
        datetime.timedelta(minutes=1): 60.0,
    }
    assert [sql_module._number(one) for one in moments] == list(moments.values())
