"""The functions of `cordee.data` for tables, from their files to the sets of a job."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordee
from cordee.core.errors import DataError
from cordee.feed.features import reader_of

pa = pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))


def numbers(chain: Any) -> list[float]:
    return sorted(float(row["n"]) for row in chain)


def test_the_same_rows_from_files_memory_and_a_database(tmp_path: Path) -> None:
    from pyarrow import parquet

    frame = {"n": np.arange(300.0), "word": [f"w{i % 3}" for i in range(300)]}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for part in range(3):
        rows = range(part * 100, part * 100 + 100)
        (tmp_path / f"a/{part}.csv").write_text("n,word\n" + "".join(f"{i}.0,w{i % 3}\n" for i in rows))
        chosen = {"n": frame["n"][rows.start : rows.stop], "word": frame["word"][rows.start : rows.stop]}
        parquet.write_table(pa.table(chosen), tmp_path / f"b/{part}.parquet")
    with sqlite3.connect(tmp_path / "base.db") as base:
        base.execute("create table t (n real, word text)")
        base.executemany("insert into t values (?, ?)", list(zip(frame["n"].tolist(), frame["word"], strict=True)))
    chains = [
        cordee.data.csv(tmp_path / "a"),
        cordee.data.csv([tmp_path / "a/0.csv", str(tmp_path / "a/[12].csv")]),
        cordee.data.parquet(tmp_path / "b"),
        cordee.data.table(frame),
    ]
    if pytest.importorskip("sqlalchemy"):
        chains.append(cordee.data.sql("select * from t order by n", f"sqlite:///{tmp_path / 'base.db'}"))
    for chain in chains:
        assert chain.columns == ("n", "word") and numbers(chain) == list(range(300))
    held = [chain.drop("word").split(0.8, 0.1, 0.1).data() for chain in chains[:3]]
    sizes = [tuple(len(one) for one in (data.train, data.validation, data.test) if one is not None) for data in held]
    assert sizes[0] == sizes[1] and sum(sizes[0]) == sum(sizes[2]) == 300


def test_one_text_is_not_a_list(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"columns='age' is not a list of texts: write columns=\['a', 'b'\]"):
        cordee.data.csv(tmp_path, columns="age")
    with pytest.raises(DataError, match="separator='::' of a CSV file is not one character"):
        cordee.data.csv(tmp_path, dialect="::")


def test_a_reader_that_was_written_down_wrongly_is_one_clear_error() -> None:
    known = "cordee.feed.sources.csv.CsvReader"
    for damaged in (
        {"name": known},
        {"name": known, "options": 3},
        {"name": known, "options": {"columns": ["a"], "dialect": 7}},
        {"name": "cordee.feed.sources.nothing.Reader", "options": {}},
    ):
        with pytest.raises(DataError, match=r"features.json says that .* damaged.*Give new rows as a frame"):
            reader_of(damaged, ["a"])
