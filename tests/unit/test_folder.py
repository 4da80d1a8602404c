"""One run, one folder: who holds it, what a resumed run finds in it, and what a start that failed leaves."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cordee.core.errors import CheckpointError, UsageError
from cordee.core.plan import Plan
from cordee.runtime.folder import LOCK, Hold, former_settings, saved_step, tidied
from cordee.runtime.recorder import Recorder
from cordee.runtime.wording import PYTHON
from harness import DEADLINE_S
from records import start, step, write

HOLDS = """
import sys, time
from pathlib import Path
from cordee.runtime.folder import Hold
hold = Hold(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(1000)
"""


def recorder(folder: Path, *, resume: bool = False) -> Recorder:
    return Recorder(folder, resume=resume, listen=lambda event: None)


def test_a_folder_is_held_by_one_process_and_the_kernel_takes_it_back(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        for resume in (False, True):
            with pytest.raises(UsageError, match="still being trained") as caught:
                recorder(tmp_path, resume=resume)
            assert f"process {other.pid} on {socket.gethostname()}" in str(caught.value)
            assert "--out" in str(caught.value)
        with pytest.raises(UsageError, match="out="):
            Hold(tmp_path, PYTHON)
        os.kill(other.pid, signal.SIGKILL)
        other.wait(DEADLINE_S)
    recorder(tmp_path, resume=True).close()
    assert not (tmp_path / LOCK).exists()


def test_a_file_that_was_taken_away_is_not_taken_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that held the folder ends between our opening its file and our locking it."""
    first = Hold(tmp_path)
    lock = fcntl.flock

    def late(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        first.release()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    second = Hold(tmp_path)
    with pytest.raises(UsageError, match="still being trained"):
        Hold(tmp_path)
    second.release()
    second.release()
    Hold(tmp_path).release()


def test_a_folder_is_let_go_when_a_start_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UsageError, match="holds a run already"):
        recorder(tmp_path)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        recorder(tmp_path / "nothing", resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json"]


def test_settings_are_written_down_and_found_again(tmp_path: Path) -> None:
    assert former_settings(tmp_path) == {}
    made = recorder(tmp_path)
    made.begin(target="job.py", plan=Plan(), workers=1, resume=False, settings={"epochs": "40", "lr": "1e-3"})
    made.close()
    assert former_settings(tmp_path) == {"epochs": "40", "lr": "1e-3"}
    for damaged in ("[]", "{", json.dumps({"settings": None})):
        (tmp_path / "run.json").write_text(damaged)
        assert former_settings(tmp_path) == {}


def test_the_newest_checkpoint_is_named(tmp_path: Path) -> None:
    assert saved_step(tmp_path) is None
    for name in ("step-00000009", "step-00000123", ".step-00000200.new-1", "step-odd"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert saved_step(tmp_path) == 123


def fail_in(folder: Path, *, ours: bool) -> None:
    with pytest.raises(LookupError), tidied(folder, ours=ours):
        raise LookupError


def test_what_a_failed_start_leaves(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, ours, more in (("named", False, []), ("trained", True, [step(2.0, 1)]), ("failed", True, [])):
        write(runs / name, [*start(0.0, 1), *more], target="job.py")
        fail_in(runs / name, ours=ours)
    assert sorted(path.name for path in runs.iterdir()) == ["named", "trained"]
    write(runs / "kept", start(0.0, 1))
    (runs / "kept" / "notes.txt").write_text("of the user")
    fail_in(runs / "kept", ours=True)
    assert (runs / "kept" / "notes.txt").exists()
    write(runs / "waiting", start(0.0, 1))
    other = Hold(runs / "waiting")  # the host that coordinates, on a disk that all see
    fail_in(runs / "waiting", ours=True)
    assert (runs / "waiting" / "events.jsonl").exists()
    other.release()
    write(tmp_path / "first" / "failed", start(0.0, 1))
    fail_in(tmp_path / "first" / "failed", ours=True)
    assert not (tmp_path / "first").exists()
