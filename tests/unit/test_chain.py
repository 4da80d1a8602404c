"""A chain as a whole: its sets, its store, its fitted steps, and what is done when it is iterated over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import cordee
from cordee.core.errors import DataError
from cordee.feed.chain import Chain
from cordee.feed.making import Making
from cordee.feed.order import Order
from cordee.feed.sources.csv import CsvReader
from cordee.feed.steps.code import code_of
from cordee.feed.steps.pack import Finish
from cordee.feed.store.aggregate import aggregate
from cordee.feed.store.cached import cache_folder
from cordee.feed.store.layout import Features
from cordee.feed.store.opened import StoreSource, open_store
from harness import until
from rows_here import chain, columns, files, whole

RANDOM = np.random.default_rng(3)
N = 400
A, KIND = RANDOM.normal(5, 2, N), [["cat", "dog"][one] for one in RANDOM.integers(0, 2, N)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def values(given: Chain, name: str = "n") -> dict[str, list[Any]]:
    """What each set has in a column."""
    making = given._making(())
    return {part: source.rows(np.arange(len(source)))[name].tolist() for part, source in making.store().sets.items()}


# ------------------------------------------------------------- sets


def test_a_set_of_a_row_depends_on_seed_and_origin_alone() -> None:
    tables = {"a": columns(n=np.arange(300)), "b": columns(n=np.arange(300, 500))}
    base = files(tables, chunk=30).split(0.6, 0.3, 0.1, seed=4)
    sets = values(base)
    assert sorted(one for part in sets.values() for one in part) == list(range(500))
    assert [round(len(one) / 50) for one in sets.values()] == [6, 3, 1]
    assert values(files(tables, chunk=7).split(0.6, 0.3, 0.1, seed=4)) == sets
    more = values(files({**tables, "c": columns(n=np.arange(500, 900))}, chunk=30).split(0.6, 0.3, 0.1, seed=4))
    assert {name: [one for one in more[name] if one < 500] for name in more} == sets
    longer = {"a": columns(n=np.arange(300)), "b": columns(n=np.arange(300, 600))}
    assert {name: [one for one in found if one < 500] for name, found in values(
        files(longer).split(0.6, 0.3, 0.1, seed=4)
    ).items()} == sets  # fmt: skip
    assert values(base.split(0.6, 0.3, 0.1, seed=5)) != sets


@pytest.mark.parametrize("by", ["row", "path"])
def test_a_file_of_the_same_name_moves_no_row_to_another_set(tmp_path: Path, by: str) -> None:
    paths = [tmp_path / f"{folder}/x.csv" for folder in "abcdef"]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        path.write_text("\n".join(["n", *(str(100 * number + one) for one in range(100))]) + "\n")

    def dealt(count: int) -> dict[int, str]:
        found = values(Chain(CsvReader(), paths[:count]).split(0.5, 0.25, 0.25, seed=1, by=by))
        return {int(n): name for name, numbers in found.items() for n in numbers}

    whole = dealt(6)
    assert len(whole) == 600 and len(set(whole.values())) > 1
    for count in range(1, 6):
        assert {n: name for n, name in whole.items() if n < 100 * count} == dealt(count)


def test_sets_by_path_by_pattern_and_by_a_key() -> None:
    tables = {
        f"{'val/' if one > 7 else ''}{one}": columns(n=np.full(20, one), who=[f"u{one % 5}"] * 20) for one in range(10)
    }
    by_path = values(files(tables).split(0.5, 0.5, 0.0, by="path", seed=1))
    assert set(by_path["train"]).isdisjoint(by_path["validation"])
    named = values(files(tables).split(1.0, 0, 0, by=("path", {"validation": "val/*"})))
    assert sorted(set(named["validation"])) == [8, 9]
    by_key = values(files(tables).split(0.5, 0.3, 0.2, by="who", seed=2), "who")
    sets = [set(one) for one in by_key.values()]
    assert sum(len(one) for one in sets) == 5  # each in one set alone
    by_number = values(files(tables).split(0.5, 0.5, 0.0, by="n"))
    assert set(by_number["train"]).isdisjoint(by_number["validation"])


def test_statistics_are_those_of_the_training_rows_alone() -> None:
    base = chain("kind", a=A, kind=KIND).standardize().split(0.5, 0.25, 0.25)
    rows = np.array(values(chain("kind", a=A, kind=KIND).split(0.5, 0.25, 0.25), "a")["train"])
    (step,) = base.fitted_steps()
    assert abs(step.less[0] - rows.mean()) < 1e-12  # type: ignore[attr-defined]
    assert abs(step.less[0] - A.mean()) > 1e-3  # type: ignore[attr-defined]
    held = whole(base.data().validation)["x"]
    assert abs(held.mean()) > 1e-3
    # Held-out rows may be anything: the training does not see them.
    odd = A.copy()
    odd[np.isin(A, rows, invert=True)] = 1e6
    found = whole(chain("kind", a=odd, kind=KIND).standardize().split(0.5, 0.25, 0.25).data().train)["x"]
    assert np.array_equal(found, whole(base.data().train)["x"])


@pytest.mark.parametrize("cut", [lambda one: one.cache(), lambda one: one.take(N)])
def test_a_cut_does_not_show_held_out_rows_to_steps_before_it(cut: Any) -> None:
    base = chain("kind", a=A, kind=KIND).standardize()
    expected = whole(base.split(0.5, 0.25, 0.25).data().train)["x"]
    late = cut(base).filter(lambda one: one["a"] < 1e9).split(0.5, 0.25, 0.25)
    assert np.array_equal(whole(late.data().train)["x"], expected)


def test_a_split_without_rows_is_explained() -> None:
    by_key = chain("t", a=[1, 1, 1], t=[0, 1, 2]).split(0.5, 0.5, 0, by="a")
    with pytest.raises(DataError, match=r"left no row for .* one value of 'a' go to one set"):
        by_key.data()
    with pytest.raises(DataError, match="left no row for validation, of 4 rows"):
        chain("t", a=[1, 2, 3, 4], t=[0, 1, 0, 1]).split(0.98, 0.01, 0.01).data()


# ------------------------------------------------------------- fitting and keys


def counting(calls: list[int]) -> Any:
    append = calls.append  # of which a key sees nothing, while a list in a closure is a part of it

    def count(one: Any) -> Any:
        append(len(one["a"]))
        return one

    return count


def table(path: Path, rows: int = 6_000) -> Path:
    """Files of some size, with missing values."""
    path.mkdir()
    for number in range(6):
        numbers = RANDOM.normal(100, 3, (rows // 6, 2))
        lines = [f"{a:.6f},{'' if at % 11 == 0 else f'{b:.6f}'},c{at % 37}" for at, (a, b) in enumerate(numbers)]
        (path / f"{number}.csv").write_text("\n".join(["a,b,kind", *lines]) + "\n")
    return path


@pytest.mark.parametrize("several", [(2,), pytest.param((1, 5), marks=pytest.mark.slow)])
def test_statistics_of_any_number_of_processes_agree(several: tuple[int, ...], tmp_path: Path) -> None:
    path = table(tmp_path / "table")
    base = Chain(CsvReader(), path).standardize("a", "b").one_hot("kind")
    found = []
    for processes in (0, *several):
        making = Making(base.reader, base.places, base.steps, base.parts)
        gather = lambda before, fittings, making=making, processes=processes: aggregate(  # noqa: E731
            making._recipe(before), fittings, processes=processes
        )
        monkey = replace(making)
        object.__setattr__(monkey, "_gather", gather)
        found.append(monkey._fit())
    assert all(one == found[0] for one in found)


def test_a_store_is_built_once_and_again_when_something_changes(tmp_path: Path) -> None:
    calls: list[int] = []
    base = chain("kind", a=A, kind=KIND).map(counting(calls))
    base.data()
    first = len(calls)
    base.data()
    assert len(calls) == first
    base.split(0.5, 0.5, 0).data()
    assert len(calls) > first
    keys = {
        one._making((Finish(("kind",)),)).recipe.key
        for factor in (1, 2)
        for one in [chain("kind", a=A, kind=KIND).map(lambda given, factor=factor: {**given, "a": given["a"] * factor})]
    }
    assert len(keys) == 2  # a default of the function


@pytest.mark.parametrize("chunk", [1, 7, 500, 2000])
def test_the_first_row_that_steps_leave_is_found_without_all_rows_in_memory(chunk: int) -> None:
    """A file that is sorted by class, of which a filter takes the last one."""
    held: list[int] = []
    base = chain("n", chunk=chunk, n=np.arange(2000)).map(lambda one: held.append(len(one["n"])) or one)
    base = base.filter(lambda one: one["n"] >= 1990).map(lambda one: {"n": one["n"] + 0.5})
    making = base._making(())
    assert [one.called for one in making._fit()] == ["map", "filter", "map"]
    assert max(held) <= max(2 * 512, chunk)
    assert held[0] <= 512
    assert making.store().manifest.rows("train") == 10
    with pytest.raises(DataError, match="no row left behind map, filter"):
        chain("n", n=np.arange(2000)).map(lambda one: one).filter(lambda one: one["n"] > 2000).map(
            lambda one: one
        ).data()


OFFSET = 1


def uses_global(one: Any) -> Any:
    return one + OFFSET


def test_the_key_of_a_function_is_what_it_consists_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(value: Any) -> Any:
        return lambda one: one + value

    assert code_of(made(1)) == code_of(made(1))
    assert len({code_of(made(value)) for value in (1, 2, "1", np.arange(3), np.arange(4), [1], {"a": 1})}) == 7
    before = code_of(uses_global)
    monkeypatch.setitem(uses_global.__globals__, "OFFSET", 2)
    assert code_of(uses_global) != before
    assert code_of(lambda one: one * 2) != code_of(lambda one: one * 3)


# ------------------------------------------------------------- alone


def test_it_is_gone_through_in_the_order_of_a_training() -> None:
    base = chain("kind", n=np.arange(N), kind=KIND)
    order = Order(N, 64, seed=3)
    for step, batch in enumerate(base.shuffle(3, epoch=2).batch(64)):
        assert np.array_equal(batch.ids, order.ids(2, step))
        assert batch.x.ravel().tolist() == batch.ids.tolist()
        # Augmentation in it is that of a training, too.
        assert batch.seed == 3
    ahead = [one.x.tolist() for one in base.shuffle(3).batch(64).prefetch()]
    assert ahead == [one.x.tolist() for one in base.shuffle(3).batch(64)]
    assert [row["n"] for row in base.shuffle(3)] == Order(N, N, seed=3).ids(0, 0).tolist()
    assert [row["kind"] for row in base] == KIND


def test_rows_are_read_ahead_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    base, read, given = chain("kind", n=np.arange(N), kind=KIND), [], StoreSource.rows
    monkeypatch.setattr("cordee.feed.view._ROWS_AT_ONCE", 10)
    monkeypatch.setattr(StoreSource, "rows", lambda self, ids: read.append(len(ids)) or given(self, ids))
    rows = iter(base)
    next(rows)
    assert read == [10]
    ahead = base.shuffle(3).prefetch()
    read.clear()
    rows = iter(ahead)
    first = next(rows)
    until(lambda: read == [10, 10])
    assert [first["n"], *(row["n"] for row in rows)] == [row["n"] for row in base.shuffle(3)]


def test_take_and_repeat() -> None:
    base = chain("kind", n=np.arange(N), kind=KIND)
    assert [row["n"] for row in base.take(5)] == [0, 1, 2, 3, 4]
    assert [row["n"] for row in base.take(2).repeat(2)] == [0, 1, 0, 1]
    ten = base.take(10)
    assert [row["n"] for row in ten.take(5).take(8)] == [0, 1, 2, 3, 4]
    assert [row["n"] for row in ten.take(8).take(5)] == [0, 1, 2, 3, 4]
    first = [*range(10), *range(5)]
    assert [row["n"] for row in ten.repeat(2).take(15)] == first
    assert [row["n"] for row in ten.repeat(2).take(15).repeat(2)] == 2 * first
    assert ten.repeat(2).take(15).data().train.gather(np.arange(15))["x"][:, 0].tolist() == first
    assert [len(one.ids) for one in ten.take(4).batch(4)] == [4]
    split = base.take(100).split(0.5, 0.3, 0.2)
    assert sum(len(one) for one in split.data().sets.values()) == 100
    twice = base.split(0.5, 0.3, 0.2).repeat(2).data()
    once = base.split(0.5, 0.3, 0.2).data()
    assert (len(twice.train), len(twice.validation)) == (2 * len(once.train), len(once.validation))  # type: ignore[arg-type]
    behind = base.take(50).map(lambda one: {"n": one["n"] + 1, "kind": one["kind"]})
    assert [row["n"] for row in behind] == list(range(1, 51))
    copies = base.take(200).repeat(3).sample(0.5)
    counts = np.bincount([row["n"] for row in copies], minlength=200)
    assert set(counts.tolist()) == {0, 1, 2, 3}  # each copy is drawn by itself


@pytest.mark.parametrize("cut", [lambda one: one, lambda one: one.cache()])
def test_evaluation_sees_each_sample_once_whatever_is_drawn(cut: Any) -> None:
    base = cut(chain(n=np.arange(N))).split(0.5, 0.3, 0.2)
    whole_sets = values(base)
    for drawn in (cut(base).sample(0.3), cut(base).sample(0.4, replacement=True), base.sample(3, replacement=True)):
        sets = values(drawn)
        assert {**sets, "train": []} == {**whole_sets, "train": []}
        assert set(sets["train"]) < set(whole_sets["train"]) and len(sets["train"]) != len(whole_sets["train"])
    for drawn in (chain(n=np.arange(N)).sample(0.3), chain(n=np.arange(N)).sample(0.4, replacement=True)):
        sets = values(cut(drawn).split(0.5, 0.3, 0.2))
        for name in ("validation", "test"):
            assert set(sets[name]) < set(whole_sets[name]) and len(sets[name]) == len(set(sets[name])) > 0
    assert len(sets["train"]) > len(set(sets["train"]))


def test_show_and_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = chain("kind", a=A, kind=KIND).split(0.5, 0.3, 0.2)
    base.show(2)
    seen = capsys.readouterr().out.splitlines()
    assert len(seen) == 4
    assert seen[0] == "a (float64), kind (text (any length))"
    out = base.build(tmp_path / "out")
    store = open_store(out)
    assert np.array_equal(whole(store.sets["test"])["x"], whole(base.data().test)["x"])
    few = open_store(base.take(6).repeat(2).build(tmp_path / "few"))
    assert {name: len(one) for name, one in few.sets.items()} == {"train": 6, "validation": 2, "test": 1}


@pytest.mark.parametrize("cut", [lambda one: one, lambda one: one.cache()])
def test_a_store_gives_all_that_its_chain_knew(tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: Any) -> None:
    def halved(batch: Any) -> Any:
        return {**batch.fields, "x": batch.x / 2}

    def noisy(batch: Any) -> Any:
        return batch.fields

    base = cut(chain("kind", a=A, kind=KIND).standardize()).split(0.5, 0.3, 0.2)
    wanted = base.data()
    out = base.build(tmp_path / "out")
    assert not capsys.readouterr().err
    for found in (cordee.data.store(out), cordee.data.as_data(out), cordee.data.store(out, cache=cordee.data.Cache())):
        assert found.features == decoded(wanted.features) and found.notes == ()
        assert found.classes == {"y": ("cat", "dog")}
    late = base.transform(halved).augment(noisy)
    stamp = (out / "manifest.json").stat().st_mtime_ns
    late.build(out)  # the same rows: the manifest alone is new
    assert (out / "manifest.json").stat().st_mtime_ns != stamp
    assert "without transform(halved), augment(noisy)" in capsys.readouterr().err
    kept = cordee.data.store(out)
    assert "cordee.data.store(...).transform(halved).augment(noisy)" in kept.notes[0]
    assert kept.features is not None and kept.features.transforms == ()
    again = kept.transform(halved).augment(noisy)
    assert again.notes == () and again.features == decoded(late.data().features)


def decoded(features: Any) -> Any:
    """As they are behind JSON, where tuples are lists."""
    return msgspec.json.decode(msgspec.json.encode(features), type=Features)


def test_it_is_taken_wherever_data_is() -> None:
    base = chain("kind", a=A, kind=KIND)
    assert len(cordee.data.as_source(base)) == N
    split = base.split(0.5, 0.3, 0.2)
    assert set(cordee.data.as_data(split).sets) == {"train", "validation", "test"}
    with pytest.raises(DataError, match="several sets"):
        cordee.data.as_source(split)
    assert cache_folder().is_dir()
