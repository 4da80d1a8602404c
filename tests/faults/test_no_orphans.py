"""Must show 7: however a run ends, none of its processes is left 5 s later."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from cordee.core.errors import Interrupted, StorageError, WorkerFailed, WorkersLost
from cordee.runtime.folder import is_held
from harness import DEADLINE_S, Process, Run, command, descendants, job_file, marked, start, until

Training = Callable[..., AbstractContextManager["Alive"]]


class Alive:
    """A run of three workers that is in the middle of its training."""

    def __init__(self, launcher: subprocess.Popen[str], workers: list[int], everybody: set[Process]) -> None:
        self.launcher = launcher
        self.workers = workers
        self.everybody = everybody

    @property
    def fork_server(self) -> int:
        """The parent of the workers."""
        fields = Path(f"/proc/{self.workers[0]}/stat").read_text().rpartition(")")[2].split()
        return int(fields[1])


BOTH = pytest.mark.parametrize("training", ["warm", "cold"], indirect=True)
"""What a server of its own could leave behind is looked at with every change; the rest with the slow tests."""


@pytest.fixture(params=["warm", pytest.param("cold", marks=pytest.mark.slow)])
def training(request: pytest.FixtureRequest, warm: int, tmp_path: Path) -> Iterator[Training]:
    """Starts a run that would go on for long, from the warm server or from a server of its own."""
    mark = f"CORDEE_TESTS_MARK_{secrets.token_hex(8)}"
    environment = {**os.environ, mark: "1"}
    if request.param == "cold":
        environment["XDG_RUNTIME_DIR"] = str(tmp_path)

    @contextmanager
    def begin(*settings: str) -> Iterator[Alive]:
        pids = tmp_path / "pids"
        pids.mkdir()
        told = [word for setting in (f"pids={pids}", "epochs=100000", *settings) for word in ("--set", setting)]
        launcher = start(
            "train", job_file("steady"), "--workers", "3", "--out", tmp_path / "run", *told, env=environment
        )
        roots = (launcher.pid, warm)
        try:
            yield Alive(launcher, _until_trained(launcher, pids, tmp_path / "run"), descendants(*roots))
            _assert_gone(descendants(*roots) | marked(mark))
        finally:
            launcher.kill()
            launcher.communicate(timeout=DEADLINE_S)

    yield begin


def _until_trained(launcher: subprocess.Popen[str], pids: Path, out: Path) -> list[int]:
    """Wait for the third step; the numbers of the workers."""

    def trained() -> bool:
        ended = launcher.poll() is not None  # on a busy machine a short run may be over when we look
        if (out / "events.jsonl").exists() and len(Run(out).of("step")) >= 3:
            return True
        assert not ended, launcher.communicate()
        return False

    until(trained)
    return [int((pids / str(worker)).read_text()) for worker in range(3)]


def _assert_gone(processes: set[Process]) -> None:
    until(lambda: not any(one.alive for one in processes))


@BOTH
def test_the_launcher_is_killed(training: Training, tmp_path: Path) -> None:
    with training() as run:
        assert len(run.everybody) >= 4  # three workers and the server they came from
        assert is_held(tmp_path / "run") is True
        run.launcher.kill()
        run.launcher.wait(DEADLINE_S)
        _assert_gone(run.everybody)
    assert not (tmp_path / "run/report.html").exists()  # nobody was left to write it
    shown = command("report", tmp_path / "run")
    assert f"report: {tmp_path / 'run/report.html'}" in shown.stdout
    assert "steady: It was killed after" in shown.stdout and "pill killed" in (tmp_path / "run/report.html").read_text()


def test_a_worker_is_killed(training: Training, tmp_path: Path) -> None:
    struck = tmp_path / "struck"
    with training("epochs=2", f"awaits={struck}") as run:
        os.kill(run.workers[0], signal.SIGKILL)
        struck.touch()
        run.launcher.communicate(timeout=DEADLINE_S)
        assert run.launcher.returncode == 0
        _assert_gone(run.everybody)
    assert [event["worker"] for event in Run(tmp_path / "run").of("failure")] == [0]


@BOTH
def test_the_fork_server_is_killed(training: Training) -> None:
    with training() as run:
        os.kill(run.fork_server, signal.SIGKILL)
        _, errors = run.launcher.communicate(timeout=DEADLINE_S)
        assert run.launcher.returncode == WorkersLost.code, errors
        assert "Traceback" not in errors
        _assert_gone(run.everybody)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_a_checkpoint(number: signal.Signals, training: Training, tmp_path: Path) -> None:
    with training() as run:
        run.launcher.send_signal(number)
        _, errors = run.launcher.communicate(timeout=DEADLINE_S)
        assert run.launcher.returncode == Interrupted.code, errors
        assert "--resume" in errors and "Traceback" not in errors
        _assert_gone(run.everybody)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["ended"].endswith(": interrupted") and result["steps"] == len(Run(tmp_path / "run").of("step"))
    on = ("--resume", "--workers", "2", "--out", tmp_path / "run")
    epochs = result["steps"] // 15 + 1
    resumed = command("train", job_file("steady"), *on, "--set", f"epochs={epochs}")
    assert resumed.returncode == 0, resumed.stderr
    steps = [event["step"] for event in Run(tmp_path / "run").of("step")]
    assert steps == list(range(1, 15 * epochs + 1))  # at the very next step


def test_ctrl_c_in_a_terminal_reaches_the_whole_group_and_ends_alike(training: Training) -> None:
    """A terminal signals every process of its group; twice means at once."""
    with training("delay=0.7") as run:
        for _ in range(2):
            run.launcher.send_signal(signal.SIGINT)
            time.sleep(0.2)
        _, errors = run.launcher.communicate(timeout=DEADLINE_S)
        assert run.launcher.returncode == Interrupted.code, errors
        _assert_gone(run.everybody)


def test_a_worker_raises(training: Training) -> None:
    with training("raises=40") as run:
        _, errors = run.launcher.communicate(timeout=DEADLINE_S)
        assert run.launcher.returncode == WorkerFailed.code, errors
        assert errors.count("Traceback") == 1 and "as it was told to" in errors
        _assert_gone(run.everybody)


@pytest.mark.parametrize("act", ["remove", "rename"])
def test_the_folder_of_the_run_goes_away(act: str, training: Training, tmp_path: Path) -> None:
    """It could save nothing more, so it ends, and says why."""
    with training() as run:
        if act == "remove":
            shutil.rmtree(tmp_path / "run")
        else:
            (tmp_path / "run").rename(tmp_path / "other")
        _, errors = run.launcher.communicate(timeout=DEADLINE_S)
        assert run.launcher.returncode == StorageError.code, errors
        assert f"the folder {tmp_path / 'run'} was removed or renamed while its run was going on" in errors
        assert "Traceback" not in errors
        _assert_gone(run.everybody)
