"""Steps of a chain give what a plain computation gives, and say what is wrong."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordee.core.errors import DataError
from cordee.feed.columns import Ragged
from cordee.feed.steps.origin import words_of
from cordee.feed.steps.words import Words
from cordee.feed.steps.written import classes_of
from rows_here import chain, columns, files, whole

N = 300
RANDOM = np.random.default_rng(5)
AGE = np.where(np.arange(N) % 7 == 0, np.nan, RANDOM.normal(40, 10, N))
SIZE = RANDOM.integers(0, 9, N)
CITY = [["Bern", "Genf", "", "Chur"][one % 4] for one in range(N)]
KIND = [["cat", "dog", "owl"][one] for one in RANDOM.integers(0, 3, N)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rows(given: Any) -> list[dict[str, Any]]:
    return list(given)


def column(given: Any, name: str) -> np.ndarray:
    return np.array([row[name] for row in given])


def test_map_takes_columns_or_rows_and_gives_the_same() -> None:
    base = chain(age=AGE, city=CITY)
    many = base.map(lambda one: {"n": one["age"] * 2, "long": [len(text) for text in one["city"]], "t": one["city"]})
    single = base.map(lambda row: {"n": row["age"] * 2, "long": len(row["city"]), "t": row["city"]}, rows=True)
    for found in (many, single):
        np.testing.assert_array_equal(column(found, "n"), AGE * 2)
        assert column(found, "long").tolist() == [len(one) for one in CITY]
        assert column(found, "t").tolist() == CITY


def test_filter_flat_map_select_drop_rename() -> None:
    base = chain(age=AGE, size=SIZE, city=CITY)
    assert column(base.filter(lambda one: one["size"] > 4), "size").tolist() == SIZE[SIZE > 4].tolist()
    assert column(base.filter(lambda row: row["city"] == "Bern", rows=True), "city").tolist() == ["Bern"] * 75
    split = base.flat_map(lambda row: [{"c": letter} for letter in row["city"]])
    assert column(split, "c").tolist() == list("".join(CITY))
    assert list(rows(base.select("city", "age"))[0]) == ["city", "age"]
    assert list(rows(base.drop("city"))[0]) == ["age", "size"]
    assert list(rows(base.rename(age="years"))[0]) == ["years", "size", "city"]


def test_samples_are_drawn_by_the_origin_of_a_row() -> None:
    base = chain(n=np.arange(2000), chunk=50)
    some = column(base.sample(0.3, seed=1), "n")
    assert 500 < len(some) < 700
    assert column(chain(n=np.arange(2000), chunk=77).sample(0.3, seed=1), "n").tolist() == some.tolist()
    assert column(base.sample(0.3, seed=2), "n").tolist() != some.tolist()
    again = column(base.sample(1.5, replacement=True), "n")
    counts = np.bincount(again, minlength=2000)
    assert abs(counts.mean() - 1.5) < 0.1
    assert abs(counts.var() - 1.5) < 0.2


def test_fill() -> None:
    base = chain(age=AGE, city=CITY, size=SIZE)
    there = AGE[~np.isnan(AGE)]
    for how, value in (("mean", there.mean()), ("median", np.median(there)), (-1, -1.0)):
        np.testing.assert_allclose(column(base.fill(how), "age"), np.where(np.isnan(AGE), value, AGE), rtol=1e-14)
    assert column(base.fill("none"), "city").tolist() == [one or "none" for one in CITY]
    assert np.isnan(column(base.fill(0, "size"), "age")).any()


def test_standardize_and_scale() -> None:
    base = chain("size", age=AGE, size=SIZE, same=np.full(N, 7.3), image=RANDOM.integers(0, 99, (N, 2, 3)))
    found = base.standardize()
    np.testing.assert_allclose(column(found, "age"), (AGE - np.nanmean(AGE)) / np.nanstd(AGE), rtol=1e-5)
    assert (column(found, "same") == 0).all()
    assert column(found, "size").dtype == np.int64  # the label is left alone
    image = np.array(rows(base.standardize("image"))[5]["image"])
    given = np.array(rows(base)[5]["image"])
    every = np.stack([row["image"] for row in base])
    np.testing.assert_allclose(image, (given - every.mean(0)) / every.std(0), rtol=1e-5)
    scaled = column(base.scale("age"), "age")
    assert (np.nanmin(scaled), np.nanmax(scaled)) == (0, 1)
    assert (column(base.scale("same"), "same") == 0).all()


def test_statistics_hold_for_large_numbers() -> None:
    stamps = 1_700_000_000.0 + np.arange(N)
    found = column(chain(t=stamps).standardize(), "t")
    np.testing.assert_allclose(found, (stamps - stamps.mean()) / stamps.std(), rtol=1e-5)


def test_one_hot_hash_and_classes() -> None:
    base = chain("kind", city=CITY, kind=KIND, size=SIZE)
    hot = np.stack([row["city"] for row in base.one_hot()])
    assert hot.tolist() == [[float(one == name) for name in ("Bern", "Chur", "Genf")] for one in CITY]
    sizes = np.stack([row["size"] for row in base.one_hot("size")])
    assert sizes.argmax(1).tolist() == np.unique(SIZE, return_inverse=True)[1].tolist()
    numbers = column(base.classes("kind"), "kind")
    assert numbers.tolist() == [["cat", "dog", "owl"].index(one) for one in KIND]
    hashed = np.stack([row["city"] for row in base.hash("city", 8)])
    assert np.abs(hashed).sum(1).tolist() == [float(bool(one)) for one in CITY]
    assert (hashed[0] == hashed[4]).all()
    # The same in every version: written down once.
    assert column(chain(w=["Bern", "Genf", "Chur", ""]).hash("w", 1000, places=True), "w").tolist() == HASHED
    assert column(chain(w=[1.0, 2.0]).hash("w", 9, places=True), "w").tolist() == [
        *column(chain(w=[1, 2]).hash("w", 9, places=True), "w")
    ]


HASHED = [417, 368, 121, 155]


def test_tokenize_and_pad() -> None:
    texts = ["The cat, the dog.", "a cat", "", "owl the"]
    found = [row["t"].tolist() for row in chain(t=texts).tokenize("t", 2, length=4)]
    assert found == [[2, 3, 1, 2], [1, 3, 0, 0], [0, 0, 0, 0], [1, 2, 0, 0]]
    given = [row["t"].tolist() for row in chain(t=texts).tokenize("t", ["dog", "cat"])]
    assert given == [[1, 3, 1, 1, 2, 1], [1, 3], [], [1, 1]]
    raw = [row["t"].tolist() for row in chain(t=texts).tokenize("t", by="bytes").pad("t", 3)]
    assert raw[1] == [ord("a") + 1, ord(" ") + 1, ord("c") + 1]
    own = chain(t=texts).tokenize("t", lambda many: {"input_ids": [[len(one)] for one in many]}, length=2)
    assert [row["t"].tolist() for row in own] == [[17, 0], [5, 0], [0, 0], [7, 0]]


def test_words_of_a_chunk_are_added_to_the_vocabulary_without_a_copy_of_it() -> None:
    step = Words("text", 3)
    for turned in (False, True):
        both = vocabulary, part = Counter(a=3, b=2, c=1), Counter(b=5, d=1)
        assert step.merge(*(reversed(both) if turned else both)) is vocabulary
        assert vocabulary == Counter(a=3, b=7, c=1, d=1) and part == Counter(b=5, d=1)


def test_pack_and_the_end_of_a_chain() -> None:
    base = chain("kind", age=np.nan_to_num(AGE), size=SIZE, ok=SIZE > 3, kind=KIND)
    data = whole(base.data().train)
    assert sorted(data) == ["x", "y"]
    np.testing.assert_allclose(data["x"], np.stack([np.nan_to_num(AGE), SIZE, SIZE > 3], 1).astype(np.float32))
    assert data["y"].tolist() == [["cat", "dog", "owl"].index(one) for one in KIND]
    own = whole(base.pack("x", ["size"]).drop("ok").data().train)
    assert sorted(own) == ["age", "x", "y"]
    assert own["x"].shape == (N, 1)


def test_values_that_float32_would_round_do_not_become_inputs_unseen() -> None:
    base = chain("kind", day=1.7e9 + 86_400.0 * np.arange(N), kind=KIND)
    with pytest.raises(DataError, match=r"'day' has values up to 1\.73e\+09.*standardize\('day'\)"):
        base.data()
    assert np.abs(whole(base.standardize("day").data().train)["x"]).max() < 2


@pytest.mark.parametrize(
    ("label", "expected", "dtype"),
    [
        ([3, 1, 2, 3], [2, 0, 1, 2], torch.int64),  # counted from 1
        ([0.5, 1.5, 2.0, 3.0], [0.5, 1.5, 2.0, 3.0], torch.float32),
        ([True, False, True, True], [1, 0, 1, 1], torch.int64),
        ([[1, 0], [0, 1], [1, 1], [0, 0]], [[1, 0], [0, 1], [1, 1], [0, 0]], torch.int64),
        ([[1.0, 0], [0, 1], [1, 1], [0, 0]], [[1, 0], [0, 1], [1, 1], [0, 0]], torch.float32),
    ],
)
def test_kinds_of_labels(label: Any, expected: Any, dtype: torch.dtype) -> None:
    found = chain("t", a=[1.0, 2, 3, 4], t=label).data().train.gather(np.arange(4))["y"]
    assert (found.tolist(), found.dtype) == (expected, dtype)


def test_a_label_called_y_is_treated_as_any_other() -> None:
    for given, expected in (([5, 1, 5], [1, 0, 1]), (["b", "a", "b"], [1, 0, 1]), ([0.5, 1.5, 2], [0.5, 1.5, 2])):
        data = chain("y", a=[1.0, 2, 3], y=given).data()
        assert data.train.gather(np.arange(3))["y"].tolist() == expected
    assert chain("y", a=[1.0, 2], y=["b", "a"]).classes("y").data().classes == {"y": ("a", "b")}


def test_whole_numbers_that_became_classes_are_told_where_they_may_be_a_quantity() -> None:
    assert chain("t", a=[1, 2, 3], t=[100, 250, 990]).data().notes == (
        "the label's whole numbers became 3 classes: 100 is 0, 250 is 1, ... 990 is 2. If it is a quantity that a "
        "model is to give back, make floats of it: types={'...': 'float64'}",
    )
    for plain in ([0, 1, 2], [1, 2, 1], ["a", "b", "c"], [0.5, 1.5, 9.0], [True, False, True]):
        assert chain("t", a=[1, 2, 3], t=plain).data().notes == ()


def test_two_targets_and_an_image_beside_a_table() -> None:
    found = whole(chain(("a", "b"), a=[1, 2], b=[0.5, 1.5], c=[7, 8]).data().train)
    assert found["y"].tolist() == [[1, 0.5], [2, 1.5]]
    image = RANDOM.integers(0, 255, (4, 5, 5, 3), dtype=np.uint8)
    base = chain("kind", image=image, age=[1.0, 2, 3, 4], weight=[1, 2, 3, 4], kind=["a", "b", "a", "b"])
    with pytest.raises(DataError, match=r"rename\(image='x'\)"):
        base.data()
    both = whole(base.rename(image="x").pack("table").data().train)
    assert {name: (one.shape, str(one.dtype)) for name, one in both.items()} == {
        "x": ((4, 5, 5, 3), "uint8"),
        "table": ((4, 2), "float32"),
        "y": ((4,), "int64"),
    }
    alone = whole(base.drop("age", "weight").data().train)
    assert alone["x"].dtype == np.uint8


LARGE = [2**60, 2**60 + 1, 2**60 + 100, -(2**60), -(2**60) - 1, 2**53, 2**53 + 1, 2**62 + 3, -(2**62) - 3]
TOP = [2**63, 2**63 + 1, 2**64 - 1, 2**64 - 2, 7]


@pytest.mark.parametrize("ids", [LARGE, TOP], ids=["int64", "uint64"])
def test_ids_that_float64_does_not_tell_apart(ids: list[int]) -> None:
    base = chain(id=np.array(ids, np.int64 if min(ids) < 0 else np.uint64))
    assert column(base.classes("id"), "id").tolist() == [sorted(ids).index(one) for one in ids]
    assert column(base.one_hot("id"), "id").argmax(axis=1).tolist() == [sorted(ids).index(one) for one in ids]
    assert len(set(column(base.hash("id", 2**40, places=True), "id").tolist())) == len(ids)


def test_equal_numbers_have_equal_words_whatever_they_are_kept_as() -> None:
    ints = np.array([0, 1, -5, 2**52, 2**53, 2**60, -(2**60)])
    assert words_of(ints).tolist() == words_of(ints.astype(np.float64)).tolist()
    assert words_of(ints[:2]).tolist() == words_of(np.array([False, True])).tolist()
    assert words_of(np.array([2**63], np.uint64)).tolist() == words_of(np.array([2.0**63])).tolist()
    # As ever: rows keep their sets and places.
    assert words_of(ints[:3]).tolist() == [
        9697987418369713155, 2482578371271027166, 3448488173254353844
    ]  # fmt: skip
    floats = np.array([-0.0, 2.5, np.nan, 1e300, np.inf])
    assert words_of(floats).tolist() == [
        9697987418369713155, 7736276164693560445, 6538965058142043870, 4411661916946490119, 13827364380089593077
    ]  # fmt: skip


def test_names_of_classes() -> None:
    base = chain("kind", age=np.nan_to_num(AGE), kind=KIND)
    assert base.data().classes == {"y": ("cat", "dog", "owl")}
    assert base.classes("kind").data().classes == {"y": ("cat", "dog", "owl")}
    assert classes_of(base.rename(kind="k").labelled("k").classes("k").fitted_steps()) == {"k": ("cat", "dog", "owl")}


LIST = Ragged.of([[1, 2], [3]])
DAYS = np.array(["2024-01-01", "2024-05-01"], "datetime64[D]")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: chain("t", a=[1.0, np.nan], t=[0, 1]), "missing in 'a'.*fill"),
        (lambda: chain("t", a=["x", "y"], t=[0, 1]), "one_hot.*hash.*tokenize.*drop"),
        (lambda: chain("t", a=[1, 2], t=["x", ""]), "'t' is missing in 1 row"),
        (lambda: chain("t", a=[1, 2], t=[1.0, np.nan]), "label 't' is missing"),
        (lambda: chain("tt", a=[1, 2], t=[0, 1]), "'tt' is not there.*Did you mean t"),
        (lambda: chain("t", t=[0, 1]), "nothing to predict it from"),
        (lambda: chain("t", a=[np.nan, np.nan], t=[0, 1]).fill("mean"), "no value in the training rows.*drop"),
        (lambda: chain("t", a=[np.nan, np.nan], t=[0, 1]).standardize(), "no value in the training rows"),
        (lambda: chain("t", a=["", ""], t=[0, 1]).one_hot("a"), "no value in the training rows"),
        (lambda: chain(a=[1, 2]).standardize("b"), "no such column.*There are a"),
        (lambda: chain(a=["x", "y"]).standardize("a"), "numbers were expected"),
        (lambda: chain(a=["x", "y"]).standardize(), "there is no column of numbers"),
        (lambda: chain(a=[1, 2]).one_hot(), "there is no column of texts"),
        (lambda: chain(a=[1, 2]).tokenize("a"), "texts were expected"),
        (lambda: chain(a=[1, 2]).pad("a", 3), "any length were expected"),
        (lambda: chain(a=["x", "y"]).pad("a", 3), "tokenize makes them"),
        (lambda: chain(a=[1, 2]).select("b"), "no such column"),
        (lambda: chain(a=[1, 2]).drop("b"), "no such column"),
        (lambda: chain(a=[1, 2], b=[1, 2]).rename(a="b"), "called 'b'"),
        (lambda: chain(a=[1, 2], x=[1, 2]).pack("x", ["a"]), "of this name already"),
        (lambda: chain(a=["x", "y"]).one_hot("a", limit=1), "more than 1.*hash"),
        (lambda: chain(a=[1, 2]).map(lambda one: None), "return missing"),
        (lambda: chain(a=[1, 2]).map(lambda one: {"a": 3}), "single|int; an array"),
        (lambda: chain(a=[1, 2]).map(lambda one: {"a": one["a"][:1]}), "2 rows, as many"),
        (lambda: chain(a=[1, 2]).map(lambda one: {"a": one["b"]}), "KeyError.*given a: int64"),
        (lambda: chain(a=[1, 2]).filter(lambda one: one["a"]), "a boolean for each"),
        (lambda: chain(a=[1, 2]).filter(lambda one: one["a"] > 5).map(lambda one: one), "no row left behind filter"),
        (lambda: chain(a=[1, 2]).flat_map(lambda row: 3), "list of rows"),
        (lambda: chain(a=np.arange(9)).split(0.8, 0.1, 0.1, by="b"), "no such column"),
        (lambda: chain("t", a=DAYS, t=[1, 2]), r"'a' \(datetime.*map"),
        (lambda: chain("t", a=["1", "2,5"], t=[0, 1]), r"decimal comma, such as '2,5': .*Dialect\(decimal=','"),
        (lambda: chain(a=["1,234.5", "2"]).standardize("a"), "thousands are set apart, such as '1,234.5'"),
        (lambda: chain(a=["31.12.1999", ""]).standardize(), r"dates, such as '31.12.1999': .*%d\.%m\.%Y"),
        (lambda: chain(a=["1"] * 9 + ["?"]).fill("mean", "a"), r"also '\?': if that means missing, .*\('', '\?'\)"),
        (lambda: chain("t", a=["2,5"], b=[1], t=[0]).standardize(), "decimal comma"),  # gathered with the one before
        (lambda: chain("t", a=["1", "2e3"], t=[0, 1]), "numbers in its first rows and texts in others.*float64"),
    ],
)
def test_what_a_user_can_get_wrong(wrong: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"(?s){said}"):
        wrong().data()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda one: one.map(3), "a function was expected"),
        (lambda one: one.sample(1.5), "at most 1"),
        (lambda one: one.split(0.8, 0.3), "add up to"),
        (lambda one: one.split(0.5, 0.5, 0.5), "add up to 1.5"),
        (lambda one: one.split(0, 0.5, 0.5), "nothing to train on"),
        (lambda one: one.split(0.8, 0.1, 0.1, by=3), "expected 'row'"),
        (lambda one: one.split(1.0, 0, 0, by=("path", {"valid": "*"})), "'valid' is no set"),
        (lambda one: one.take(0), "at least 1"),
        (lambda one: one.batch(2.5), "at least 1"),
        (lambda one: one.batch(2).standardize(), "come last"),
        (lambda one: one.shuffle(2).take(3), "before shuffle"),
        (lambda one: one.shuffle(2).repeat(3), r"Write .repeat\(3\).shuffle"),
        (lambda one: one.batch(4).take(2), r"Write .take\(8\).batch\(4\)"),
        (lambda one: one.batch(4).repeat(2), r"Write .repeat\(2\).batch\(4\)"),
        (lambda one: one.batch(4).shuffle(), r"Write .shuffle\(...\).batch\(4\)"),
        (lambda one: one.batch(4).batch(2), "one size"),
        (lambda one: one.shuffle(1000), r"no size of a buffer.*shuffle\(seed=1000\)"),
        (lambda one: one.hash("a", 0), "at least 1"),
        (lambda one: one.hash("a", 10**6), "places=True"),
        (lambda one: one.tokenize("a", "words"), "a list of words"),
        (lambda one: one.tokenize("a", by="letters"), "'bytes'"),
        (lambda one: one.fill(None), "'median'"),
        (lambda one: one.classes(), "name the columns"),
        (lambda one: one.pack("x", "a"), r"\['a'\]"),
        (lambda one: one.select(), "name the columns"),
    ],
)
def test_what_is_refused_at_once(wrong: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        wrong(chain(a=[1, 2]))


def test_a_class_that_training_never_saw() -> None:
    tables = {"train/a": columns(a=[1, 2], t=["cat", "dog"]), "val/b": columns(a=[3], t=["owl"])}
    base = files(tables, "t").split(1.0, 0.0, 0.0, by=("path", {"validation": "val/*"}))
    with pytest.raises(DataError, match=r"'owl' in rows that are held out.*'cat', 'dog'"):
        base.data()


def test_many_categories_are_refused_with_advice() -> None:
    many = [f"c{one}" for one in range(2000)]
    with pytest.raises(DataError, match=r"more than 1,000 categories.*hash\('a', 64\)"):
        chain(a=many).one_hot("a").data()
    assert whole(chain("t", a=many, t=[0, 1] * 1000).hash("a", 64).data().train)["x"].shape == (2000, 64)


def test_dates_by_hand() -> None:
    days = ["2024-01-01", "2024-01-08", "2024-02-01"]

    def numbers(one: Any) -> Any:
        return {"day": [datetime.date.fromisoformat(day).toordinal() for day in one["day"]], "t": one["t"]}

    found = whole(chain("t", day=days, t=[1.0, 2.0, 3.0]).map(numbers).scale("day").data().train)
    np.testing.assert_allclose(found["x"].ravel(), [0, 7 / 31, 1], rtol=1e-6)
