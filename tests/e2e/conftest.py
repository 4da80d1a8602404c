"""What several tests share: a run that they look at, a disk that is soon full."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import DEADLINE_S, job_file, start
from records import events_until


@pytest.fixture(autouse=True)
def from_the_warm_server(warm: int) -> None:
    """Every run of this folder starts from the warm server, whichever test asks for it first."""


@pytest.fixture(scope="session")
def killed(warm: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three workers, of which worker 1 was killed."""
    out = tmp_path_factory.mktemp("killed") / "run"
    more = ("--workers", "3", "--threads", "1", "--set", "epochs=10", "--set", "delay=0.02")
    with start("train", job_file("steady"), "--out", out, *more) as process:
        found = events_until(out, process, 20)
        os.kill(next(one["pid"] for one in found if one["event"] == "worker" and one["worker"] == 1), signal.SIGKILL)
        said, complaints = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, complaints
    assert f"report: {out / 'report.html'}" in said
    return out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
