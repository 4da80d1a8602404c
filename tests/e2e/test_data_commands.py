"""`cordee data build` and `cordee data show`, and training from what they make."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from alone import command
from cordee.core.errors import DataError
from cordee.data import as_data

CHAIN = """
import cordee
chain = cordee.data.csv({path!r}, label="y").one_hot("kind").split(0.8, 0.2, 0.0)
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    rows = [f"{20 + n % 50},{n * 1.5},{'abc'[n % 3]},{n % 2}" for n in range(200)]
    path.write_text("\n".join(["age,income,kind,y", *rows]) + "\n")
    return path


def test_a_csv_file_becomes_a_store(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ratios = ("--split", "0.8,0.1,0.1")
    built = command("data", "build", table, out, "--label", "y", "--set", "columns=age,income,y", *ratios)
    assert built.returncode == 0, built.stderr
    sets = as_data(str(out)).sets
    assert set(sets) == {"train", "validation", "test"} and sum(map(len, sets.values())) == 200
    told = json.loads(command("data", "show", out, "--json", "--verify").stdout)
    assert told["rows"] == {name: len(one) for name, one in sets.items()}
    assert told["verified"] and told["statistics"]["y"]["mean"] == 0.5
    assert json.loads(command("data", "show", f"file://{out}", "--json").stdout) == {**told, "verified": False}
    shown = command("data", "show", out).stdout
    assert "float32 (2,)" in shown and "first rows of train" in shown
    again = command("data", "build", table, out, "--label", "y", "--set", "columns=income,y")
    assert again.returncode == 11 and "--replace" in again.stderr


def test_a_chain_of_a_file_becomes_a_store(table: Path, tmp_path: Path) -> None:
    script = tmp_path / "people.py"
    script.write_text(CHAIN.format(path=str(table)))
    built = command("data", "build", f"{script}:chain", tmp_path / "out")
    assert built.returncode == 0, built.stderr
    data = as_data(tmp_path / "out")
    assert data.validation is not None and len(data.train) + len(data.validation) == 200


def test_the_form_of_a_folder_is_what_its_files_are(table: Path, tmp_path: Path) -> None:
    deep = tmp_path / "all" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "table.csv.gz").write_bytes(gzip.compress(table.read_bytes()))
    (tmp_path / "all" / "README.txt").write_text("ages and incomes")
    built = command("data", "build", tmp_path / "all", tmp_path / "out", "--label", "y", "--set", "columns=age,y")
    assert built.returncode == 0 and "train 200 rows" in built.stdout, built.stderr


def test_what_cannot_be_built_is_named(table: Path, tmp_path: Path) -> None:
    unknown, mixed = tmp_path / "b.xyz", tmp_path / "mixed"
    for path in (unknown, mixed / "a.csv", mixed / "b" / "c.png"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for arguments, message in (
        (["a.xyz", "out"], "there is no file or folder"),
        ([unknown, "out"], "the name does not say what it holds"),
        ([mixed, "out"], "it holds 1 file for csv and 1 file for images. Give one of --form csv"),
        ([table, "out", "--form", "cvs"], "Did you mean csv"),
        ([table, "out", "--set", "colunms=a"], "Did you mean columns"),
        ([tmp_path / "none.csv", "out"], "none.csv"),
        ([table, "out", "--split", "80%"], "0.8,0.1,0.1"),
    ):
        done = command("data", "build", *arguments, cwd=tmp_path)
        assert done.returncode and message in done.stderr and "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match=r"cordee\.data\.csv"):
        as_data(str(table))
