"""Lists, frames, series and several arrays as data: taken where they say enough, else refused with what to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cordee
from cordee.core.errors import DataError
from cordee.feed.arrays import as_array
from cordee.feed.data import as_data

ROWS = [[1.5, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0]]
CLASSES = [0, 1, 0, 1, 1]
IDS = np.array([3, 0])


class Series:
    """As much of a column as is used."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def to_numpy(self) -> Any:
        return self._values


class Frame:
    """As much of a table as is used, of pandas and of others."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Series:
        return Series(self._columns[name])

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def to_numpy(self) -> Any:
        return np.stack(list(self._columns.values()), axis=1)


FRAME = Frame({"age": [30, 40, 50, 60, 70], "height": [1.5, 1.6, 1.7, 1.8, 1.9], "married": [True, False] * 2 + [True]})


def gathered(given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    fields = as_data(given).train.gather(IDS)
    return fields["x"], fields["y"]


@pytest.mark.parametrize(
    "y", [Series(CLASSES), CLASSES, np.array(CLASSES), torch.tensor(CLASSES)], ids=["series", "list", "array", "tensor"]
)
@pytest.mark.parametrize("wrap", [tuple, lambda pair: {"x": pair[0], "y": pair[1]}], ids=["tuple", "dict"])
def test_a_frame_and_its_target(y: Any, wrap: Any) -> None:
    x, target = gathered(wrap((FRAME, y)))
    assert torch.equal(x, torch.tensor([[60, 1.8, 0], [30, 1.5, 1]]))
    assert x.dtype == torch.float32 and target.tolist() == [1, 0] and target.dtype == torch.int64


def test_lists() -> None:
    x, y = gathered((ROWS, CLASSES))
    assert torch.equal(x, torch.tensor([[7.0, 8.0], [1.5, 2.0]])) and y.tolist() == [1, 0]
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert gathered(([torch.tensor(row) for row in ROWS], CLASSES))[0].tolist() == x.tolist()
    doubles = gathered(([np.array(row) for row in ROWS], CLASSES))[0]
    assert doubles.dtype == torch.float64 and doubles.tolist() == x.tolist()
    sets = cordee.data.arrays(ROWS, CLASSES, validation=(ROWS[:2], CLASSES[:2]), test=0.2)
    assert [len(one) for one in (sets.train, sets.validation, sets.test)] == [4, 2, 1]  # type: ignore[arg-type]
    images = as_data([torch.full((2, 2), float(place)) for place in range(5)]).train.gather(IDS)
    assert images[:, 0, 0].tolist() == [3.0, 0.0]  # type: ignore[call-overload]


def test_more_fields_by_name() -> None:
    mask = np.array(CLASSES, dtype=bool)
    held = {"input_ids": ROWS[:2], "labels": CLASSES[:2], "mask": mask[:2]}
    sets = cordee.data.arrays(input_ids=ROWS, labels=CLASSES, mask=mask, validation=held, test=0.2)
    assert set(sets.train.gather(np.array([0]))) == {"input_ids", "labels", "mask"}
    assert sets.validation.gather(np.array([1]))["mask"].tolist() == [True]  # type: ignore[union-attr]
    assert (len(sets.train), len(sets.test)) == (4, 1)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="vaildation: a single value is no array"):
        cordee.data.arrays(ROWS, CLASSES, vaildation=0.1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (FRAME, r"columns age, height, married, does .*data=\(frame.drop\(columns='married'\), frame\['married'\]\)"),
        (Frame({"Label": [1], "x": [2]}), r"frame\['Label'\]"),
        ((np.ones((5, 2)), np.ones(5), np.ones(5)), r"3 arrays .* data=\{'x': x, 'mask': mask, 'y': y\}, or cordee"),
        ((Frame({"city": ["a", "b"], "age": [1, 2]}), [0, 1]), r"x: the columns city hold no numbers: .*get_dummies"),
        ((ROWS, Series(["cat", "dog", "cat", "cat", "dog"])), r"y: the column holds no numbers: .*cat.codes"),
        (([[1.0], [2.0, 3.0]], [0, 1]), r"x: this list of 2 list is not a table of numbers with rows of equal length"),
        ((["good", "bad"], [1, 0]), r"x: this list of 2 str is not a table of numbers"),
        ((ROWS, CLASSES[:3]), "x: 5, y: 3"),
    ],
)
def test_what_does_not_say_enough_is_refused_with_the_line_to_write(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        as_data(given)


def test_a_table_of_arrow_names_what_takes_it() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": [1.5, 2.5], "label": ["x", "y"]})
    for wrong in (table, table.to_batches()[0], {"train": table}):
        with pytest.raises(DataError, match=r"columns a, label, .*=cordee.data.table\(frame, label='label'\)"):
            cordee.data.as_data(wrong)


def test_pandas_itself() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.5, 2.5, 3.5, 4.5], "b": [1, 2, 3, 4], "label": ["x", "y", "x", "y"]})
    frame.index = [9, 7, 5, 3]
    classes = frame["label"].astype("category").cat.codes
    x, y = gathered((frame[["a", "b"]], classes))
    assert torch.equal(x, torch.tensor([[4.5, 4], [1.5, 1]])) and (y.tolist(), y.dtype) == ([1, 0], torch.int64)
    dummies = pandas.get_dummies(frame, columns=["label"])
    assert as_array("x", dummies).tolist()[0] == [1.5, 1, 1, 0]
    whole = frame.convert_dtypes()  # types that know missing values
    assert torch.equal(gathered((whole[["a", "b"]], classes))[0], x)
    for wrong in (frame, (frame, classes), (frame[["a"]], frame["label"])):
        with pytest.raises(
            DataError, match=r"frame\['label'\]|columns label hold no numbers|y: the column holds no num"
        ):
            as_data(wrong)
    sets = cordee.data.arrays(frame[["a", "b"]], frame["a"], validation=0.25)
    assert len(sets.train) == 3 and sets.train.gather(np.array([0]))["y"].dtype == torch.float32
