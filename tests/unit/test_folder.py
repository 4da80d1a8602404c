"""One run, one folder: who holds it, what a resumed run finds in it, and what a start that failed leaves."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cordee.core.errors import CheckpointError, JobError, StorageError, UsageError
from cordee.core.events import JobEvent, WarningEvent
from cordee.core.plan import Plan
from cordee.runtime.folder import LOCK, Hold, former_settings, is_held, make, saved_step, tidied
from cordee.runtime.launch import Launch
from cordee.runtime.recorder import Recorder
from cordee.runtime.spec import Target
from cordee.runtime.wording import PYTHON
from harness import DEADLINE_S
from records import end, start, step, write, write_checkpoint

HOLDS = """
import sys, time
from collections.abc import Callable
from pathlib import Path
from cordee.runtime.folder import Hold
hold = Hold(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(1000)
"""


def launch(folder: Path, *, resume: bool = False, script: bool = False, **settings: str) -> Launch:
    return Launch(Target("script" if script else "job", "job.py", settings), 2, Plan(), folder, resume)


def recorder(folder: Path, *, resume: bool = False, script: bool = False, **settings: str) -> Recorder:
    return Recorder(launch(folder, resume=resume, script=script, **settings), lambda event: None)


def job(steps: int) -> JobEvent:
    return JobEvent("job", 1, 1, 9, steps, 1, {}, last_step=9)


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
        assert is_held(tmp_path) is True
        os.kill(other.pid, signal.SIGKILL)
        other.wait(DEADLINE_S)
    assert (tmp_path / LOCK).exists() and is_held(tmp_path) is False
    recorder(tmp_path, resume=True).close()
    assert not (tmp_path / LOCK).exists() and is_held(tmp_path) is False
    (tmp_path / LOCK).write_text("process 1 on another.host\n")
    assert is_held(tmp_path) is None  # whose locks may not be seen from here


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


def test_a_glance_at_a_folder_does_not_keep_a_run_from_it(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("process 1 that was killed\n")
    with (tmp_path / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.05, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        hold = Hold(tmp_path)
        with pytest.raises(UsageError, match="still being trained"):
            Hold(tmp_path)
        hold.release()


def test_a_folder_is_let_go_when_a_start_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(UsageError, match="holds a run already"):
        recorder(tmp_path)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        recorder(tmp_path / "nothing", resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json"]


def test_where_no_folder_can_be_made_the_message_says_why_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    for path, why in ((tmp_path / "notes.txt", "notes.txt is a file"), (tmp_path / "notes.txt" / "run", "is a file")):
        with pytest.raises(StorageError, match=rf"{why}\. Choose another folder with --out"):
            recorder(path)
    with pytest.raises(StorageError, match=r"/proc/run: .*\. Choose another folder with out="):
        make(Path("/proc/run"), PYTHON)


def test_a_script_does_not_begin_where_a_run_is(tmp_path: Path) -> None:
    for name, more, about in (
        ("trained", [step(2.0, 1)], {}),
        ("ended", [end(3.0)], {}),
        ("nothing", [end(3.0, code=10)], {}),  # of a start that was refused
        ("failed", [step(2.0, 1), end(3.0, code=20)], {"job": {}}),  # of a job, before its first checkpoint
    ):
        write(tmp_path / name, [*start(0.0, 1)[:1], *more], target="x.py", **about)
    for script in (True, False):
        for name in ("trained", "ended"):
            with pytest.raises(UsageError, match=r"holds a run already: choose another folder with --out$"):
                recorder(tmp_path / name, script=script)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        recorder(tmp_path / "trained", resume=True)
    (tmp_path / "resumable" / "checkpoints" / "step-00000003").mkdir(parents=True)
    with pytest.raises(UsageError, match="already: choose"):  # `cordee run` knows no --resume
        recorder(tmp_path / "resumable", script=True)
    for name in ("nothing", "failed"):
        recorder(tmp_path / name, script=True).close()


def test_a_start_that_does_not_go_on_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    first = recorder(tmp_path)
    first.begin(2)
    first.notice(0, job(0))
    first.end(None)
    first.close()
    (tmp_path / "result.json").write_text("{}")
    kept, events = (tmp_path / "run.json").read_bytes(), (tmp_path / "events.jsonl").read_bytes()
    heard: list[str] = []
    for error in (JobError("--set foo: a job has no such field"), None):
        again = Recorder(launch(tmp_path, resume=True, foo="3"), lambda event: heard.append(event.kind))
        again.event(WarningEvent("waiting for the other hosts"))
        again.begin(2)
        again.flush()
        if error is not None:
            again.end(error)
        again.close()
        more = (tmp_path / "events.jsonl").read_bytes().removeprefix(events).splitlines()
        assert [(one["event"], one["code"], one["message"]) for one in map(json.loads, more)] == [
            ("attempt", 10, "--set foo: a job has no such field")
        ]
        assert (tmp_path / "run.json").read_bytes() == kept
    assert heard == ["warning", "start", "attempt", "warning", "start"]  # whoever looks on is told at once


def test_a_start_that_goes_on_is_written_down_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    again = recorder(tmp_path, resume=True, epochs="3")
    again.begin(2)
    assert not (tmp_path / "events.jsonl").read_bytes() and former_settings(tmp_path) == {}
    again.notice(0, job(7))
    assert [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [
        "start",
        "job",
    ]
    assert former_settings(tmp_path) == {"epochs": "3"}
    again.close()


def test_settings_are_written_down_and_found_again(tmp_path: Path) -> None:
    assert former_settings(tmp_path) == {}
    made = recorder(tmp_path, epochs="40", lr="1e-3")
    made.begin(1)
    made.close()
    assert former_settings(tmp_path) == {"epochs": "40", "lr": "1e-3"}
    for damaged in ("[]", "{", json.dumps({"settings": None})):
        (tmp_path / "run.json").write_text(damaged)
        assert former_settings(tmp_path) == {}


def test_the_newest_checkpoint_is_named(tmp_path: Path) -> None:
    assert saved_step(tmp_path) is None
    for number in (9, 123):
        write_checkpoint(tmp_path, number)
    for name in (".step-00000200.new-1", "step-odd"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert saved_step(tmp_path) == 123


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("checkpoint.json", lambda path: path.unlink()),
        ("checkpoint.json", lambda path: os.truncate(path, 20)),
        ("checkpoint.json", lambda path: path.write_text(path.read_text().replace("123", "124"))),
        ("tensors-00000.safetensors", lambda path: path.unlink()),
        ("tensors-00000.safetensors", lambda path: os.truncate(path, 2)),
    ],
)
def test_a_damaged_checkpoint_is_not_named(tmp_path: Path, file: str, damage: Callable[[Path], object]) -> None:
    """By its index and the sizes of its files: of all that they hold, the SHA-256 would take minutes."""
    for number in (9, 123):
        path = write_checkpoint(tmp_path, number)
    damage(path / file)
    assert saved_step(tmp_path) == 9


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
