"""What is fitted, and what files look like, is found once: by one pass, kept in the cache, looked up by every start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import DataError
from cordee.feed.chain import Chain
from cordee.feed.places import Place
from cordee.feed.sources.csv import CsvReader
from cordee.feed.store.aggregate import aggregate
from rows_here import chain

RANDOM = np.random.default_rng(3)
N = 400
A, KIND = RANDOM.normal(5, 2, N), [["cat", "dog"][one] for one in RANDOM.integers(0, 2, N)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two files with a missing value."""
    folder = tmp_path / "table"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.csv").write_text("a,b,kind\n1,,c1\n2,3,c2\n")
    return folder


def test_fittings_beside_each_other_take_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    from cordee.feed import making

    def seen(recipe: Any, fittings: Any, **more: Any) -> Any:
        passes.append(len(fittings))
        return aggregate(recipe, fittings, **more)

    monkeypatch.setattr(making, "aggregate", seen)
    base = chain("kind", a=A, b=A, c=KIND, kind=KIND)
    base.standardize("a").scale("b").one_hot("c").data()
    assert passes == [4]  # the classes of the label with them
    passes.clear()
    base.fill("mean").standardize().one_hot().split(0.5, 0.5, 0).data()
    assert passes == [1, 3]
    passes.clear()
    base.fill("mean").standardize().one_hot().split(0.5, 0.5, 0).data()  # remembered
    assert passes == []


def test_the_cache_keeps_some_fitted_steps_those_used_last(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr("cordee.feed.steps.remembered.MOST", 2)
    chains = [chain("kind", a=A * factor, kind=KIND).standardize() for factor in (1, 2, 3)]
    made: list[set[Path]] = []
    for number, one in enumerate([chains[0], chains[1], chains[0], chains[2]]):
        before = {path: path.stat().st_mtime_ns for path in (cache / "fitted").glob("*.json")}
        one.fitted_steps()
        made.append({*(cache / "fitted").glob("*.json")})
        for path in made[-1]:  # clocks of files are coarse
            if before.get(path) != path.stat().st_mtime_ns:
                os.utime(path, (number + 1, number + 1))
    first = made[0]
    assert [len(one) for one in made] == [1, 2, 2, 2] and first < made[3] and made[3] != made[1]


def test_a_warm_start_looks_into_no_file(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = table, list[str]()
    whole = Place.open
    monkeypatch.setattr(Place, "open", lambda place: opened.append(place.key) or whole(place))
    base = Chain(CsvReader(), path, label="kind").classes("kind").fill(0.0, "b")
    kinds = base.data().features
    assert opened
    opened.clear()
    again = Chain(CsvReader(), path, label="kind").classes("kind").fill(0.0, "b")
    assert again.data().features == kinds
    assert again.columns == ("a", "b", "kind")
    assert not opened
    (path / "0.csv").write_text("a,b,kind,more\n1,2,c1,3\n")
    with pytest.raises(DataError):  # looked at again: the columns differ
        Chain(CsvReader(), path, label="kind").classes("kind").fill(0.0, "b").data()


def test_columns_are_looked_for_where_the_cache_holds_none_or_damage(
    cache: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table
    raw = Chain(CsvReader(), path).raw
    (file,) = (cache / "fitted").glob("*.json")
    assert [one.raw for one in Chain(CsvReader(), path).raw.values()] == [one.raw for one in raw.values()]
    file.write_bytes(b'{"a": 3}')
    assert Chain(CsvReader(), path).raw == raw
    monkeypatch.setenv("CORDEE_CACHE", str(file / "below"))
    assert Chain(CsvReader(), path).raw == raw
