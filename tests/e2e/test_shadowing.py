"""Files called like modules of Python lie in the current folder and beside the job: none of them ever runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cordee.core.errors import JobError
from harness import DEADLINE_S, Run

COMMAND = "import sys; sys.path.remove(''); from cordee.cli.main import main; main()"
"""What the installed `cordee` does: its own folder is searched, the current one is not."""
TRAP = "open({ran!r}, 'a').write(__name__ + '\\n')\nraise RuntimeError('a file of the current folder ran')\n"
JOB = """
import random, queue, calendar
import torch
from torch import nn
import cordee
from layers import Net

assert random.random() < 1 and queue.Queue and calendar.monthrange
job = cordee.Job(
    model=Net, loss=nn.functional.cross_entropy, data=cordee.data.digits(), batch=600, epochs=1,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
)
"""
LAYERS = "from torch import nn\n\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(64, 10)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trap for every module of Python, and a job with a module of its own."""
    here = tmp_path / "shared"
    here.mkdir()
    for name in sys.stdlib_module_names:
        (here / f"{name}.py").write_text(TRAP.format(ran=str(tmp_path / "ran")))
    (here / "job.py").write_text(JOB)
    (here / "layers.py").write_text(LAYERS)
    return here


def cordee(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in that folder, without a warm server: all of its processes start there."""
    cold = {**os.environ, "XDG_RUNTIME_DIR": str(folder.parent), **environment}
    command = [sys.executable, "-c", COMMAND, *words]
    done = subprocess.run(
        command, cwd=folder, env=cold, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert not (folder.parent / "ran").exists(), (folder.parent / "ran").read_text()
    return done


def test_a_job_trains_in_a_folder_full_of_them(folder: Path) -> None:
    done = cordee(folder, "train", "job.py", "--workers", "2", "--out", "run", "--plan", "precision=bf16")
    assert done.returncode == 0, done.stderr
    assert Run(folder / "run").result["steps"] == 3


def test_the_doctor_runs_none_of_them(folder: Path) -> None:
    assert "torch" in cordee(folder, "doctor", "--quick").stdout


def test_a_job_in_another_folder_finds_what_pythonpath_names(warm: int, folder: Path, tmp_path: Path) -> None:
    """And what only the current folder holds is not found; the message says what to do."""
    (folder / "layers.py").rename(folder / "mine.py")
    away = tmp_path / "away"
    away.mkdir()
    job = away / "job.py"
    job.write_text(JOB.replace("from layers", "from mine"))
    runtime = os.environ["XDG_RUNTIME_DIR"]
    refused = cordee(folder, "train", str(job), "--workers", "1", "--out", "run", XDG_RUNTIME_DIR=runtime)
    assert refused.returncode == JobError.code
    assert f"mine is in the current folder, which is not searched: set PYTHONPATH={folder}" in refused.stderr
    (tmp_path / "library").mkdir()
    (folder / "mine.py").rename(tmp_path / "library" / "mine.py")
    done = cordee(folder, "train", str(job), "--workers", "1", "--out", "run", PYTHONPATH=str(tmp_path / "library"))
    assert done.returncode == 0, done.stderr


def test_a_helper_called_like_a_module_of_python_is_named(warm: int, folder: Path) -> None:
    (folder / "profile.py").write_text(LAYERS)
    (folder / "job.py").write_text(JOB.replace("from layers", "from profile"))
    runtime = os.environ["XDG_RUNTIME_DIR"]
    refused = cordee(folder, "train", "job.py", "--workers", "1", "--out", "run", XDG_RUNTIME_DIR=runtime)
    assert refused.returncode == JobError.code
    assert "profile is a module of Python" in refused.stderr and "rename that file" in refused.stderr


def test_a_job_that_a_script_sends_finds_the_modules_beside_the_script(warm: int, tmp_path: Path) -> None:
    """Also under a warm server or from another current folder: its functions are sent by the name of their module."""
    (tmp_path / "layers.py").write_text(LAYERS)
    run = "cordee.train(job, workers=1, out='run', progress=False)"
    (tmp_path / "script.py").write_text(f"{JOB}\nif __name__ == '__main__':\n    {run}\n")
    (tmp_path / "elsewhere").mkdir()
    words = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(
        words, cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
