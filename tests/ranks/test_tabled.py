"""Training on a chain: the same on any number of workers, and its steps go with the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cordee
from cordee.core.errors import CordeeError, DataError
from harness import JOBS, assert_same, train


def write(path: Path, rows: int = 400) -> list[dict[str, Any]]:
    """A CSV of a rule with noise; its rows as they are read."""
    draw = np.random.default_rng(1)
    listed = []
    lines = ["a,b,place,note,kind"]
    for number in range(rows):
        kind = int(draw.integers(0, 3))
        a = None if number % 13 == 0 else round(float(draw.normal(kind, 0.5)), 4)
        b = round(float(draw.uniform(1, 2)), 4)
        place = ["north", "south", "east"][int(draw.integers(0, 3))]
        lines.append(f"{'' if a is None else a},{b},{place},n{number},{'xyz'[kind]}")
        listed.append({"a": a, "b": b, "place": place, "note": f"n{number}"})
    path.write_text("\n".join(lines) + "\n")
    return listed


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    return {"path": tmp_path / "rows.csv", "cache": tmp_path / "cache"}


def test_workers_agree_and_the_model_takes_new_rows(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = write(paths["path"])
    alone = train("tabled", tmp_path / "one", **paths)
    three = train("tabled", tmp_path / "three", workers=3, traced=True, **paths)
    assert_same(three, alone, loss=1e-9)
    assert alone.result["test"]["accuracy"] > 0.6
    # The steps are plain values in the run's folder, without any row of the training.
    saved = json.loads((three.out / "features.json").read_text())
    assert saved["classes"] == {"y": ["x", "y", "z"]}
    assert cordee.data.class_names(three.out) == ("x", "y", "z")
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    cleaned = {"cleaned": _cleaned()}
    model = cordee.load(three.out)
    outputs = []
    pandas = pytest.importorskip("pandas")
    as_columns = {name: [row[name] for row in listed] for name in listed[0]}
    for rows in (paths["path"], listed, as_columns, pandas.DataFrame(listed)):
        source = cordee.data.prepared(three.out, rows, functions=cleaned)
        outputs.append(model(source.gather(np.arange(len(source)))["x"].double()))
    assert all(torch.equal(one, outputs[0]) for one in outputs)
    with pytest.raises(DataError, match="'cleaned', which is not saved"):
        cordee.data.prepared(three.out, listed)
    with pytest.raises(DataError, match=r"no column 'b'.*They have a"):
        cordee.data.prepared(three.out, [{"a": 1.0, "place": "north", "note": ""}], functions=cleaned)
    with pytest.raises(DataError, match="'a' holds text"):
        cordee.data.prepared(three.out, [{**listed[0], "a": "many"}], functions=cleaned)


def test_resuming_refuses_other_data(paths: dict[str, Path], tmp_path: Path) -> None:
    write(paths["path"])
    train("tabled", tmp_path / "run", epochs=1, **paths)
    write(paths["path"], 300)
    with pytest.raises(CordeeError, match="data"):
        train("tabled", tmp_path / "run", resume=True, **paths)


def test_a_run_without_a_chain_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        cordee.data.prepared(tmp_path / "none", [])
    with pytest.raises(DataError, match="did not come from a chain"):
        cordee.data.class_names(tmp_path)


def _cleaned() -> Any:
    space: dict[str, Any] = {}
    source = (JOBS / "tabled.py").read_text()
    exec(compile(source, "tabled", "exec"), space)
    return space["cleaned"]
