"""New rows for a trained model: what it needs of them, and what they may lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import cordee
from cordee.core.errors import DataError
from cordee.feed.chain import Chain
from cordee.feed.features import save_features
from cordee.feed.late import read

N = 40
TABLE = {
    "id": [f"row {number}" for number in range(N)],
    "a": np.arange(float(N)),
    "b": np.arange(float(N)) % 3,
    "town": ["Bern", "Chur"] * (N // 2),
    "kind": ["no", "yes"] * (N // 2),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def rows_for(run: Path, chain: Chain, rows: Any, **functions: Any) -> np.ndarray:
    """What the model of a training on this chain is given for new rows."""
    save_features(run, chain.data().features)
    source = cordee.data.prepared(run, rows, functions=functions)
    return np.asarray(read(source, np.arange(len(source)), training=False).x)


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        (lambda base: base.drop("id").one_hot(), {"a", "b", "town"}),
        (lambda base: base.select("a", "kind"), {"a"}),
        (lambda base: base.one_hot("town").drop("id", "town"), {"a", "b", "town"}),  # it was looked at
        (lambda base: base.rename(id="name").drop("name").one_hot(), {"a", "b", "town"}),
        (lambda base: base.drop("id", "a").rename(b="a").one_hot(), {"b", "town"}),  # a name that is taken again
        (lambda base: base.map(lambda one: one).drop("id").one_hot(), {"id", "a", "b", "town"}),
        (lambda base: base.drop("id").cache().drop("b", "town"), {"a"}),
    ],
)
def test_columns_that_nothing_looks_at_are_not_asked_for(run: Path, change: Any, needed: set[str]) -> None:
    chain = change(cordee.data.table(TABLE, label="kind"))
    functions = {"<lambda>": lambda one: one}
    given = {name: column for name, column in TABLE.items() if name in needed}
    expected = rows_for(run, chain, TABLE, **functions)
    assert np.array_equal(rows_for(run, chain, given, **functions), expected) and len(expected) == N
    for name in needed:
        with pytest.raises(DataError, match=f"no column '{name}'"):
            rows_for(run, chain, {one: column for one, column in given.items() if one != name}, **functions)


def test_a_column_called_y_is_the_label_whether_it_is_named_or_not(run: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(N, 3))
    np.savez(tmp_path / "pets.npz", x=x, y=np.array(["dog", "cat"] * (N // 2)))
    np.savez(tmp_path / "new.npz", x=x[:5])
    for chain in (cordee.data.array_files(tmp_path / "pets.npz"), cordee.data.table({"x": x, "y": TABLE["kind"]})):
        data = chain.data()
        assert data.train.gather(np.arange(4))["y"].tolist() in ([1, 0, 1, 0], [0, 1, 0, 1])
        assert data.classes["y"] in (("cat", "dog"), ("no", "yes"))
    chain = cordee.data.array_files(tmp_path / "pets.npz").labelled("y")
    assert chain.data().classes == {"y": ("cat", "dog")}
    for rows in ({"x": x[:5]}, tmp_path / "new.npz"):
        assert np.array_equal(rows_for(run, chain, rows), x[:5])


def test_images_without_a_folder_for_their_class_and_a_function_that_looks_at_labels(run: Path, tmp_path: Path) -> None:
    for folder in ("cat", "dog", ""):
        (tmp_path / "photos" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "new").mkdir(exist_ok=True)
        image = Image.new("RGB", (9, 7), (10, 20, 30))
        image.save(tmp_path / ("photos" if folder else "new") / folder / "1.png")

    def to_floats(batch: Any) -> Any:
        return {"x": batch.x.float() / 10, "y": batch.y}

    chain = cordee.data.images(tmp_path / "photos", size=4).transform(to_floats)
    x = rows_for(run, chain, tmp_path / "new", to_floats=to_floats)
    assert x.shape == (1, 3, 4, 4) and x[0, :, 0, 0].tolist() == [1, 2, 3]
    source = cordee.data.prepared(run, tmp_path / "new", functions={"to_floats": to_floats})
    assert set(read(source, np.arange(1), training=False).fields) == {"x"}  # no label was made up
