"""What workers print: it is seen when it is printed, in whole lines, and a bar is not disturbed by it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import DEADLINE_S, start, until

pytestmark = pytest.mark.usefixtures("warm")

JOB = """
import sys, time
from pathlib import Path
import torch
from torch import nn
import cordee

class Prints(cordee.Callback):
    def on_step(self, session, step):
        print("before step", step.number, "on", session.rank)
        if step.number == 2:
            print("in part", end=" ", flush=True)
            while not Path("go").exists():
                time.sleep(0.01)
            print()
            print("an error", file=sys.stderr)
        time.sleep(0.1)  # the bar is drawn meanwhile

job = cordee.Job(
    model=lambda: nn.Linear(64, 10), loss=nn.functional.cross_entropy, data=cordee.data.digits(), batch=250, epochs=1,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1), callbacks=[Prints()],
)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def test_lines_come_at_once_to_a_file(job: Path, tmp_path: Path) -> None:
    """Both workers wait for us in the third step; by then everything before it can be read, to the last word."""
    said = tmp_path / "said"
    with said.open("wb") as file, start("train", job, "--workers", "2", "--out", tmp_path / "out", stdout=file) as run:
        try:
            until(lambda: said.read_text().count("in part") == 2, DEADLINE_S / 2)
            lines = said.read_text().splitlines()
        finally:
            (tmp_path / "go").touch()
        assert run.wait(DEADLINE_S) == 0
    assert {f"before step {number} on {rank}" for number in (0, 1) for rank in (0, 1)} <= set(lines)
    assert len([line for line in said.read_text().splitlines() if "before step" in line]) == 12


def test_lines_stand_above_the_bar_of_a_terminal(job: Path, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "cordee", "train", str(job), "--workers", "2", "--out", str(tmp_path / "out")]
    terminal = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=terminal) as run:
        os.close(theirs)
        said = b""
        try:
            while data := os.read(ours, 1 << 16):
                said += data
        except OSError:  # the last one has closed it
            pass
        assert run.wait(DEADLINE_S) == 0
    os.close(ours)
    plain = re.sub(r"\x1b\[[?\d;]*[mhl]", "", said.decode())
    drawn = re.sub(r"[^\n]*(\r|\x1b\[2K)(?!\n)", "", plain.replace("\r\n", "\n"))  # what the lines were in the end
    lines = drawn.splitlines()
    for number in range(6):
        for rank in (0, 1):
            assert f"before step {number} on {rank}" in lines, said
    assert lines.count("in part ") == lines.count("an error") == 2
    assert any(line.startswith("step 6/6") for line in lines), lines
