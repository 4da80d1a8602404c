"""A signal at any instant, from the first line of the command to its last, ends it in good order."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cordee.core.errors import Interrupted
from harness import DEADLINE_S, Process, Run, job_file, marked, until

STRIKE = """
import functools, importlib, os, sys
place, number = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]
strike = functools.partial(os.kill, os.getpid(), number)
if place.startswith("import "):
    struck = []
    def hook(event, words):
        if event == "import" and words[0] == place[7:] and not struck:
            struck.append(True)
            strike()
    sys.addaudithook(hook)
elif place:
    module, name = place.split(":")
    *outer, name = name.split(".")
    owner = functools.reduce(getattr, outer, importlib.import_module(module))
    old = getattr(owner, name)
    def new(*given, **more):
        try:
            return old(*given, **more)
        finally:
            strike()
    setattr(owner, name, new)
import runpy
runpy.run_module("cordee", run_name="__main__", alter_sys=True)
"""
"""The command, in which a function strikes its own process as it ends, or the first import of a module as it begins."""
EARLY = [
    ("import typer", signal.SIGTERM),
    ("import cordee.runtime.launch", signal.SIGINT),
    ("cordee.runtime.api:Options.launch", signal.SIGHUP),
    ("cordee.runtime.folder:make", signal.SIGTERM),
    ("cordee.runtime.recorder:Recorder.__init__", signal.SIGINT),
    ("cordee.runtime.coordinator.supervised:Coordinator.__init__", signal.SIGUSR1),
    ("cordee.runtime.engines.local:LocalEngine.__init__", signal.SIGHUP),
    ("cordee.runtime.recorder:Recorder.begin", signal.SIGINT),
    ("cordee.runtime.engines.local:LocalEngine.start", signal.SIGTERM),
    ("cordee.runtime.engines.local:LocalEngine.look", signal.SIGHUP),
]
LATE = [
    "cordee.runtime.coordinator.controller:Controller._wind_up",
    "cordee.watch.report:write_report",
    "cordee.cli.start:_show",
]
"""When all is trained."""


class Command:
    """`cordee train` in a folder of its own, and what it leaves behind."""

    def __init__(self, folder: Path, place: str = "", number: int = 0, *words: str) -> None:
        self.folder = folder
        self.mark = f"CORDEE_TESTS_MARK_{secrets.token_hex(8)}"
        given = [sys.executable, "-c", STRIKE, place, str(int(number)), "train", job_file("mlp"), "--workers", "2"]
        self.process = subprocess.Popen(
            [*map(str, given), "--threads", "1", *words],
            cwd=folder,
            env={**os.environ, self.mark: "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> str:
        """What it said on standard error; nothing of it is left."""
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        until(lambda: not any(map(Process.alive.fget, marked(self.mark))))  # type: ignore[attr-defined]
        return errors


def assert_in_order(errors: str, code: int) -> None:
    assert code == Interrupted.code, errors
    said = [line for line in errors.splitlines() if line.startswith("cordee:")]
    assert len(said) == 1 and "stopped" in said[0], errors
    assert "Traceback" not in errors and "Exception ignored" not in errors


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("place", "number"), EARLY)
def test_before_the_training(place: str, number: signal.Signals, warm: int, tmp_path: Path) -> None:
    """Nothing is left of a run whose folder Cordée named."""
    command = Command(tmp_path, place, number)
    errors = command.end()
    assert_in_order(errors, command.process.returncode)
    assert "stopped before the training began" in errors
    assert not (tmp_path / "runs").exists()


def test_before_the_training_in_a_folder_that_the_user_named(warm: int, tmp_path: Path) -> None:
    """Its record says what happened, and another run may begin there."""
    command = Command(tmp_path, "cordee.runtime.engines.local:LocalEngine.start", signal.SIGTERM, "--out", "run")
    assert_in_order(command.end(), command.process.returncode)
    assert Run(tmp_path / "run").of("end")[-1]["code"] == Interrupted.code
    again = Command(tmp_path, "", 0, "--out", "run", "--set", "epochs=1")
    assert "stopped" not in again.end() and again.process.returncode == 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("place", LATE)
def test_when_all_is_trained(place: str, warm: int, tmp_path: Path) -> None:
    """The run is complete, and so are its files."""
    command = Command(tmp_path, place, signal.SIGTERM, "--out", "run", "--set", "epochs=1")
    errors = command.end()
    assert command.process.returncode == 0 and "Traceback" not in errors, errors
    assert (tmp_path / "run" / "report.html").exists() and Run(tmp_path / "run").of("end")[-1]["code"] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_the_workers_own_server_imports(number: signal.Signals, warm: int, tmp_path: Path) -> None:
    """Without a warm server that takes seconds."""
    os.environ["XDG_RUNTIME_DIR"], before = str(tmp_path), os.environ["XDG_RUNTIME_DIR"]
    try:
        command = Command(tmp_path)
    finally:
        os.environ["XDG_RUNTIME_DIR"] = before
    until(lambda: len(marked(command.mark)) > 1)
    command.process.send_signal(number)
    assert_in_order(command.end(), command.process.returncode)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_at_a_random_instant(seed: int, warm: int, tmp_path: Path) -> None:
    """Trained or not, whole or in part: the exit code, the message and the folder say the same."""
    draw = random.Random(seed)
    command = Command(tmp_path, "", 0, "--set", "epochs=40")
    until(lambda: handled(command.process.pid))  # before, Python itself starts and no line of ours has run
    time.sleep(draw.uniform(0.0, 1.5))
    command.process.send_signal(draw.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
    errors = command.end()
    if command.process.returncode == 0:
        return  # it had ended
    assert_in_order(errors, command.process.returncode)
    for run in (tmp_path / "runs").glob("*"):
        record = Run(run)
        assert record.of("end")[-1]["code"] == Interrupted.code
        if "in the first steps" not in errors:
            assert record.result["steps"] == len(record.of("step"))
            assert "--resume" in errors


def handled(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)
