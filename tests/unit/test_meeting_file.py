"""The file where processes of one host meet: named by the run, private, and held by one rank 0 at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cordee.core.errors import RendezvousError, SecurityError
from cordee.core.world import World
from cordee.group import meeting
from cordee.group.meeting import Meeting
from cordee.group.wire import Address

HERE = Address("127.0.0.1", 4711, "secret")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(meeting.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(meeting, "HELD_S", 0.1)
    monkeypatch.chdir(tmp_path)
    return tmp_path / f"cordee-{os.getuid()}"


def of(rank: int, run: str = "MASTER_PORT=1") -> Meeting:
    return Meeting(World(rank, 2, rank, 2, source="torchrun", run=run))


def test_the_others_find_what_rank_0_wrote(folder: Path) -> None:
    first = of(0)
    with pytest.raises(OSError):
        of(1).find()
    first.open(HERE)
    assert of(1).find() == HERE
    with pytest.raises(OSError):
        of(1, "MASTER_PORT=2").find()
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0 and folder.stat().st_mode & 0o077 == 0
    first.close()
    assert list(folder.iterdir()) == []


def test_one_rank_0_at_a_time() -> None:
    first, second = of(0), of(0)
    first.open(HERE)
    with pytest.raises(RendezvousError, match="another process of yours waits as rank 0 of the same run, named by MAS"):
        second.open(HERE)
    assert of(1).find() == HERE
    first.close()
    second.open(Address("127.0.0.1", 4712, "other"))
    assert of(1).find().port == 4712
    second.close()


def test_a_killed_rank_0_leaves_the_name_free(tmp_path: Path) -> None:
    code = (
        "import os, signal, tempfile; tempfile.tempdir = os.getcwd()\n"
        "from cordee.core.world import World\nfrom cordee.group.meeting import Meeting\n"
        "from cordee.group.wire import Address\n"
        "meeting = Meeting(World(0, 2, 0, 2, source='torchrun', run='MASTER_PORT=1'))\n"
        "meeting.open(Address('127.0.0.1', 1, 'a longer word'))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == -9
    assert of(1).find().token == "a longer word"
    first = of(0)
    first.open(HERE)
    assert of(1).find() == HERE
    first.close()


def test_without_a_name_the_working_folder_is_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = of(0, "")
    first.open(HERE)
    assert of(1, "").find() == HERE
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(OSError):
        of(1, "").find()
    first.close()


def test_a_folder_that_others_can_read_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(SecurityError, match="not private"):
        of(0)
