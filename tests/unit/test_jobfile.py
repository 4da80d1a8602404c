"""From a job file and its settings to a job."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import cordee
from cordee.core.errors import JobError
from cordee.train.jobfile import load_job, read_value

FACTORY = """
from __future__ import annotations
import torch
import cordee

def job(lr: float = 1e-3, width: int = 128, tied: bool = False, name: str = "x", limit: int | None = None, free=3):
    global seen
    seen = (lr, width, tied, name, limit, free)
    return cordee.Job(model=lambda: torch.nn.Linear(64, 10), loss=torch.nn.functional.cross_entropy,
                      optimizer=lambda params: torch.optim.SGD(params, lr=lr), data=cordee.data.digits(), batch=7)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "task.py"
    path.write_text(FACTORY)
    return path


def seen() -> Any:
    return sys.modules["cordee_job"].seen  # type: ignore[attr-defined]


def test_arguments_are_filled_by_type(file: Path) -> None:
    settings = {"lr": "3e-4", "width": "64", "tied": "yes", "name": "7", "limit": "5", "free": "9"}
    job = load_job(file, settings)
    assert seen() == (3e-4, 64, True, "7", 5, 9)
    assert job.name == "task" and job.batch == 7
    load_job(file, {"limit": "none"})
    assert seen() == (1e-3, 128, False, "x", None, 3)


def test_the_rest_are_fields_of_the_job(file: Path) -> None:
    job = load_job(file, {"batch": "64", "epochs": "3", "shuffle": "blocks", "clip": "0.5"})
    assert (job.batch, job.epochs, job.shuffle, job.clip) == (64, 3, "blocks", 0.5)
    assert load_job(file, {"clip": "none"}).clip is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stop.stepz", "a stop has no such field. Did you mean steps?"),
        ("stopp.steps", "neither an argument of job()"),
        ("batch.size", "batch has no fields of its own; stop and save have"),
    ],
)
def test_fields_of_a_part_that_are_not_there(name: str, words: str, file: Path) -> None:
    with pytest.raises(JobError, match=re.escape(words)):
        load_job(file, {name: "3"})


def test_fields_of_stop_and_save_are_set_by_type(file: Path) -> None:
    job = load_job(file, {"stop.steps": "9", "stop.minutes": "1.5", "save.epochs": "none", "save.keep_last": "2"})
    assert (job.stop.steps, job.stop.minutes, job.stop.patience) == (9, 1.5, 3)
    assert (job.save.epochs, job.save.keep_last) == (None, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": "wide"}, r"--set width=wide: expected a whole number"),
        ({"tied": "perhaps"}, r"--set tied=perhaps: expected true or false"),
        ({"wdith": "3"}, r"wdith.*Did you mean width"),
        ({"bach": "3"}, r"bach.*Did you mean batch"),
        ({"loss": "mse"}, r"--set loss=mse"),
        ({"batch": "0"}, r"batch=0"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, str], words: str, file: Path) -> None:
    with pytest.raises(JobError, match=words):
        load_job(file, settings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import cordee\n", "does not define `job`"),
        ("def job(size: int): ...\n", "needs size: give it with --set size"),
        ("def job(): return 3\n", "is int: expected a cordee.Job"),
        ("x = (\n", "line 1"),
    ],
)
def test_a_file_without_a_job(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(text)
    with pytest.raises(JobError, match=words):
        load_job(path, {})


def test_a_job_of_another_name_is_pointed_out(file: Path) -> None:
    file.write_text(FACTORY + "\nmine = job()\ndel job\n")
    with pytest.raises(JobError, match="It defines mine: rename it to job"):
        load_job(file, {})


SCRIPT = "import cordee\nwith cordee.session() as s:\n    open({told!r}, 'w').close()\n"


def test_a_script_is_not_trained_while_it_is_looked_at(file: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    file.write_text(SCRIPT.format(told=str(told)))
    with pytest.raises(JobError, match=rf"opens cordee.session\(\).*use cordee run {re.escape(str(file))}"):
        load_job(file, {})
    assert not told.exists()
    with cordee.session() as s:  # afterwards sessions can be opened as before
        assert s.size == 1


@pytest.mark.parametrize(
    ("text", "is_script"),
    [
        ("import cordee as c\ndef main():\n    with c.session() as s: pass\n", True),
        ("from cordee import session as opened\ndef main():\n    with opened(): pass\n", True),
        ("import sys, cordee\ndef main():\n    cordee.session()\nsys.exit(2)\n", True),
        ("import requests, cordee\ndef main():\n    requests.session()\n", False),
        ("import cordee\nx = cordee.session\n", False),
    ],
)
def test_what_looks_like_a_script_is_told_how_to_run_it(text: str, is_script: bool, file: Path) -> None:
    file.write_text(text.replace("requests", "types"))
    with pytest.raises(JobError) as caught:
        load_job(file, {})
    assert str(caught.value).endswith(f"started with cordee run {file}") == is_script
    assert "does not define `job`" in str(caught.value) or "sys.exit(2)" in str(caught.value)


@pytest.mark.parametrize("code", ["", "0", "3"])
def test_a_file_that_ends_itself_is_no_job(code: str, file: Path) -> None:
    file.write_text(f"import sys\nsys.exit({code})\n")
    with pytest.raises(JobError, match=rf"task\.py ended itself with sys\.exit\({code or None}\)"):
        load_job(file, {})


def test_a_job_file_sees_no_arguments_of_ours(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["forkserver.py", "11"])
    file.write_text("import sys\nloaded = list(sys.argv)\ndef job():\n    global called\n    called = list(sys.argv)\n")
    with pytest.raises(JobError, match="is NoneType"):
        load_job(file, {})
    module: Any = sys.modules["cordee_job"]
    assert module.loaded == module.called == [str(file)]
    assert sys.argv == ["forkserver.py", "11"]


def test_a_guarded_main_block_does_not_run(file: Path) -> None:
    file.write_text(FACTORY + "\nif __name__ == '__main__':\n    raise SystemExit('ran')\n")
    assert load_job(file, {}).batch == 7


@pytest.mark.parametrize(
    ("text", "hint", "default", "value"),
    [
        ("3", int, None, 3),
        ("3", float, None, 3.0),
        ("3", int | str, None, 3),
        ("three", int | str, None, "three"),
        ("off", bool, True, False),
        ("1e-3", None, 0.5, 1e-3),
        ("a/b", Path, None, Path("a/b")),
        ("word", None, None, "word"),
    ],
)
def test_a_value_is_read_by_the_type_or_the_default(text: str, hint: Any, default: Any, value: Any) -> None:
    found = read_value("name", text, hint, default)
    assert found == value and type(found) is type(value)
