"""A job is trained and a script is run: whoever mixes them up is told, and no script writes over another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordee.core import errors
from harness import command, run_script

pytestmark = pytest.mark.usefixtures("warm")

JOB = """
import torch
import cordee

job = cordee.Job(
    model=lambda: torch.nn.Linear(64, 10),
    loss=torch.nn.functional.cross_entropy,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
    data=cordee.data.digits(),
    batch=101,
)
"""
SCRIPT = "import cordee\nwith cordee.session() as s:\n    print('opened')\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "file.py"
    path.write_text(text)
    return path


def test_a_job_is_not_run_as_a_script(tmp_path: Path) -> None:
    job = written(tmp_path, JOB)
    ended = command("run", "--workers", "2", "--out", tmp_path / "run", job)
    assert ended.returncode == errors.UsageError.code, ended.stderr
    said = f"cordee: {job} opened no cordee.session() and defines `job`, so it is a job: use cordee train {job}\n"
    assert ended.stderr.endswith(said) and "Traceback" not in ended.stderr
    job.write_text(f"{JOB}made = job\ndef job():\n    return made\n")
    with pytest.raises(errors.UsageError, match="use cordee train"):
        run_script(job, tmp_path / "run")


def test_a_script_is_not_trained_as_a_job(tmp_path: Path) -> None:
    script = written(tmp_path, SCRIPT)
    ended = command("train", "--workers", "2", "--out", tmp_path / "run", script)
    assert ended.returncode == errors.JobError.code, ended.stderr
    said = f"cordee: {script} opens cordee.session(), so it is a script and no job: use cordee run {script}\n"
    assert ended.stderr.endswith(said) and "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_a_script_that_is_neither(tmp_path: Path) -> None:
    script = written(tmp_path, "job = 'the name of something else'\n")
    run = run_script(script, tmp_path / "run", workers=2)
    told = [one["message"] for one in run.of("warning")]
    assert told == [f"{script} opened no cordee.session(); every worker ran it alone"]
    assert run.of("end")[0]["code"] == 0


def test_a_script_where_a_run_is_already(tmp_path: Path) -> None:
    script = written(tmp_path, SCRIPT)
    run_script(script, tmp_path / "run")
    kept = (tmp_path / "run" / "events.jsonl").read_bytes()
    ended = command("run", "--workers", "1", "--out", tmp_path / "run", script)
    assert ended.returncode == errors.UsageError.code, ended.stderr
    assert f"{tmp_path / 'run'} holds a run already: choose another folder with --out\n" in ended.stderr
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == kept
