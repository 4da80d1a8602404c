"""Rows of Python's: functions, iterables and datasets as raw data, written once."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from cordee.core.errors import DataError
from cordee.feed.columns import Kind
from cordee.feed.sources.kinds import TEXTS
from cordee.feed.sources.rows import RowReader, row_reader
from rawfiles import read_places


def rows_of(given: Any, start: int = 0, **more: Any) -> Any:
    reader = row_reader(given, **more)
    return read_places(reader, reader.places, start=start)


def mark(given: Any, **more: Any) -> str:
    (place,) = row_reader(given, **more).places
    return place.mark


class Pair(NamedTuple):
    image: Any
    label: int


def test_fields_of_every_kind_become_columns() -> None:
    def rows() -> Iterator[Any]:
        for n in range(10):
            yield {
                "tensor": torch.full((2,), n, dtype=torch.bfloat16),
                "array": np.full((2, 2), n, ">i2"),
                "image": Image.new("RGB", (3, 2), (n, 0, 255)),
                "float": n / 2,
                "int": n,
                "bool": n > 5,
                "list": [n] * n,
                "text": f"é{n}" if n % 2 else None,
                "bytes": bytes([n, 255]),
                "hole": None if n == 3 else float(n),
            }

    reader = row_reader(rows)
    assert reader.schema(reader.places) == {
        "tensor": Kind("float32", (2,)),
        "array": Kind("int16", (2, 2)),
        "image": Kind("uint8", (2, 3, 3)),
        "float": Kind("float32"),
        "int": Kind("int64"),
        "bool": Kind("bool"),
        "list": Kind("int64", ragged=True),
        "text": TEXTS,
        "bytes": Kind("uint8", (2,)),
        "hole": Kind("float32"),
    }
    for start in (0, 4):
        columns = rows_of(rows, start)
        assert columns["tensor"].tolist() == [[n, n] for n in range(start, 10)]
        assert columns["array"][:, 1, 0].tolist() == columns["int"].tolist() == list(range(start, 10))
        assert columns["image"][:, 0, 2].tolist() == [[n, 0, 255] for n in range(start, 10)]
        assert columns["float"].tolist() == [n / 2 for n in range(start, 10)]
        assert [one.tolist() for one in columns["list"].tolist()] == [[n] * n for n in range(start, 10)]
        assert columns["text"].tolist() == [f"é{n}" if n % 2 else "" for n in range(start, 10)]
    assert np.isnan(rows_of(rows)["hole"]).tolist() == [n == 3 for n in range(10)]


@pytest.mark.parametrize(
    ("samples", "names", "expected"),
    [
        ([(1.0, 2)], (), {"x", "y"}),
        ([1.0], (), {"x"}),
        ([Pair(1.0, 2)], (), {"image", "label"}),
        ([(1, 2, 3)], ("a", "b", "c"), {"a", "b", "c"}),
        ([{"q": 1}], (), {"q"}),
    ],
)
def test_names_of_fields(samples: Any, names: Any, expected: set[str]) -> None:
    assert set(rows_of(lambda: iter(samples), names=names)) == expected


class Squares(IterableDataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return ((torch.tensor([float(n * n)]), n) for n in range(self.count))


def test_an_iterable_dataset_is_begun_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordee.feed.sources.rows._AT_ONCE", 7)
    for start in (0, 13):
        columns = rows_of(Squares(50), start)
        assert columns["y"].tolist() == list(range(start, 50))
        assert columns["x"][:, 0].tolist() == [n * n for n in range(start, 50)]


class Decoded(Dataset[Any]):
    """As image datasets are: names of files, decoded when a sample is asked for."""

    def __init__(self, names: list[str], scale: float = 1.0, noise: Any = None) -> None:
        self.names, self.scale, self.noise = names, scale, noise

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, place: int) -> Any:
        more = self.noise() if self.noise is not None else 0.0
        return self.scale * len(self.names[place]) + more, place


def test_a_dataset_with_numbers_is_read_by_them() -> None:
    assert rows_of(Decoded(["a", "bbb"]))["x"].tolist() == [1, 3]
    assert rows_of(Subset(Decoded(["a", "bbb", "cc"]), [2, 1]))["x"].tolist() == [2, 3]
    x, y = torch.rand(20, 3), torch.arange(20)
    columns = rows_of(TensorDataset(x, y), 5)
    assert np.array_equal(columns["x"], x[5:].numpy()) and columns["y"].tolist() == list(range(5, 20))


@pytest.mark.parametrize("noise", [lambda: float(torch.rand(())), random.random, lambda: float(np.random.rand())])
def test_augmentation_is_not_written_down_unless_that_is_wanted(noise: Any) -> None:
    given = Decoded(["a"] * 30, noise=noise)
    with pytest.raises(DataError, match=r"draw random numbers.*augment.*draws=True"):
        rows_of(given)
    first = rows_of(given, draws=True)["x"]
    assert np.array_equal(first, rows_of(given, draws=True)["x"]) and len(set(first.tolist())) > 20
    assert np.array_equal(first[10:], rows_of(given, 10, draws=True)["x"])


def test_what_a_function_draws_belongs_to_the_row() -> None:
    def rows() -> Iterator[Any]:
        for _ in range(60):
            yield torch.rand(1), random.random()

    first = rows_of(rows)
    random.seed(3)
    again = rows_of(rows, 33)
    assert np.array_equal(first["x"][33:], again["x"]) and np.array_equal(first["y"][33:], again["y"])


def test_the_mark_changes_with_code_and_content() -> None:
    def maker(count: int, step: int) -> Any:
        def rows() -> Iterator[Any]:
            yield from range(0, count * step, step)

        return rows

    assert mark(maker(3, 1)) == mark(maker(3, 1)) != mark(maker(4, 1))
    assert mark(Squares(5)) == mark(Squares(5)) != mark(Squares(6))
    assert mark(Decoded(["a", "b"])) == mark(Decoded(["a", "b"])) != mark(Decoded(["a", "c"]))
    assert mark(Decoded(["a", "b"])) != mark(Decoded(["a", "b"], scale=2.0))
    assert mark(TensorDataset(torch.zeros(9))) != mark(TensorDataset(torch.ones(9)))
    assert mark(from_file, version="2") == "version 2"


class Connected:
    """Nothing in it tells what its samples are."""

    def __init__(self) -> None:
        self.path = "x.db"

    def __len__(self) -> int:
        return 5

    def __getitem__(self, place: int) -> int:
        return place


def from_file() -> Iterator[str]:
    with open("x") as file:
        yield from file


def from_helper() -> Iterator[str]:
    return from_file()


@pytest.mark.parametrize(
    ("given", "outside"),
    [(from_file, "open"), (from_helper, "open"), (lambda: sqlite3.connect("x").execute("select 1"), "connect")],
)
def test_where_nobody_can_know_a_version_is_asked_for(given: Any, outside: str) -> None:
    with pytest.raises(DataError, match=rf"reads something outside of itself \({outside}\).*version='1'"):
        mark(given)
    assert mark(given, version="7") == "version 7"
    with pytest.raises(DataError, match=r"holds no array and no list of its 5 samples.*version='1'"):
        mark(Connected())
    assert rows_of(Connected(), version="1")["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([(1, 2, 3)], "a tuple of 3.*names="),
        ([{"a": 1}, {"a": 1, "b": 2}], "row 2 has the fields a, b, the first row has a"),
        ([*([{"a": 1}] * 300), {"b": 1}], "row 301 has the fields b, the first rows have a"),
        ([{"a": object()}], "row 1: a holds a object"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], "x has the shape .2, 2. in one row and .2, 3. in another"),
        ([*([np.zeros(3)] * 300), np.zeros(4)], r"row 301: x has the shape .4,., .3,. was expected.*any length"),
        ([*([1] * 300), 2.5], "row 301: x holds a number that does not fit int64"),
        ([*([1] * 300), "no"], "row 301: x holds a text"),
        ([*(["no"] * 300), 1], "row 301: x holds numbers, a text was expected"),
        ([1, "a"], "x holds texts in some rows and numbers in others"),
        ([["a", "b"]], "holds a list of str"),
        ([[[1], [1, 2]]], "lists of different lengths"),
        ([None], "x is missing .None. in all"),
        ([*([1] * 300), None], "row 301: x is missing .None., and int64 has no sign"),
        ([], "there are none"),
        ([np.array(["2020"], "datetime64[D]")], "values of type datetime64"),
    ],
)
def test_rows_that_do_not_fit_are_named(samples: list[Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        rows_of(lambda: iter(samples))


def test_kinds_may_be_given() -> None:
    columns = rows_of(lambda: iter([*([1] * 300), 2.5]), kinds={"x": "float64"})
    assert columns["x"].dtype == np.float64 and columns["x"][-1] == 2.5
    ragged = rows_of(lambda: iter([[1, 2], [3, 4]]), kinds={"x": "int32 (any length)"})["x"]
    assert [one.tolist() for one in ragged.tolist()] == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="no field 'z'; there are x"):
        rows_of(lambda: iter([1]), kinds={"z": "float32"})


@pytest.mark.parametrize(
    ("given", "words"), [((n for n in range(3)), r"rows\(function\)"), (3, "a function that gives")]
)
def test_what_gives_no_rows_is_refused(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        row_reader(given)
    assert RowReader(Squares(1)).in_process


# ------------------------------------------------------------- skipped and counted


class Holed(Dataset[Any]):
    """Some samples cannot be read, or are of another kind."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> Any:
        if number == 3:
            raise OSError("no such picture")
        if number == 5:
            return {"x": np.zeros(3), "y": number}
        return {"x": np.zeros(2), "z" if number == 7 else "y": number}


def test_rows_that_cannot_be_read_are_left_out_and_counted() -> None:
    given = {"kinds": {"x": "float32 (2,)", "y": "int64"}, "on_error": "skip", "version": "1"}
    reader = row_reader(Holed(), **given)  # type: ignore[arg-type]
    for start, left in ((0, [0, 1, 2, 4, 6, 8, 9]), (4, [4, 6, 8, 9]), (9, [9])):
        assert read_places(reader, reader.places, start=start)["y"].tolist() == left
    (chunk,) = reader.chunks(reader.places[0], reader.schema(reader.places))
    reasons = {one.row: one.reason for one in chunk.faults}
    assert list(reasons) == [4, 6, 8] and reasons[4] == "OSError: no such picture"
    assert "row 6: x has the shape (3,), (2,) was expected" in reasons[6]
    assert "row 8 has the fields x, z, the first rows have x, y" in reasons[8]
    with pytest.raises(OSError, match="no such picture"):
        rows_of(Holed(), version="1")


def test_a_generator_ends_with_its_error_and_a_source_that_is_gone_raises_its_own() -> None:
    def five() -> Iterator[Any]:
        yield from ({"y": n} for n in range(5))
        raise ConnectionError("gone")

    class Gone(Dataset[Any]):
        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, number: int) -> Any:
            if number >= 5:
                raise ConnectionError("gone")
            return {"y": number}

    assert rows_of(five, on_error="skip")["y"].tolist() == list(range(5))
    with pytest.raises(ConnectionError, match="gone"):
        rows_of(Gone(), on_error="skip", version="1")
