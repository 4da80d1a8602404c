"""Without root: what is missing is said, and hosts that are mere processes train."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness import DEADLINE_S, Run, assert_same, train
from twin.emulated import JOB

NOBODY = 65534

Unprivileged = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can reach, with a job; pytest's own are for its user alone."""
    folder = Path(tempfile.mkdtemp(prefix="cordee-tests-"))
    try:
        (folder / "job.py").write_text(JOB)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def unprivileged(place: Path) -> Unprivileged:
    """The `cordee` command as a user without rights types it."""
    own = {"HOME": str(place), "TMPDIR": str(place), "XDG_RUNTIME_DIR": str(place)}
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "cwd": place, "env": {**os.environ, **own}}

    def call(*words: str, become: Sequence[str]) -> subprocess.CompletedProcess[str]:
        # Through `env`: the user's own process must be able to start the interpreter, not only root who becomes him.
        command = [*become, "env", sys.executable, "-m", "cordee", *words]
        return subprocess.run(command, timeout=2 * DEADLINE_S, check=False, **pipes)

    nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    reader = [*nobody, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # Python in a private home
    for become in (nobody, reader) if os.geteuid() == 0 else ([],):
        with contextlib.suppress(OSError):
            if call("twin", "--help", become=become).returncode == 0:
                return partial(call, become=become)
    pytest.skip("another user cannot read this interpreter or this package, or there is no setpriv (util-linux)")


def test_what_is_missing_is_said(unprivileged: Unprivileged) -> None:
    done = unprivileged("twin", "up", "--hosts", "2 x link=10mbit")
    assert done.returncode == 2
    assert "hosts with links cannot be made here: this user is not root, who alone may make network" in done.stderr
    assert "What is possible: --processes, and hosts without link=" in done.stderr
    assert unprivileged("twin", "list", "--json").stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mere_processes_train(unprivileged: Unprivileged, place: Path, warm: int, tmp_path: Path) -> None:
    out = place / "run"
    words = ["--hosts", "2", "--processes", "--port", "29417", "--schedule", "at step 5: kill worker 1"]
    done = unprivileged("twin", "run", "job.py", "--out", "run", *words)
    assert done.returncode == 0, done.stderr
    run = Run(out)
    assert_same(run, train(place / "job.py", tmp_path / "alone"))
    assert (run.result["workers"], run.result["failures"]) == (2, 1)
    victim = next(one["pid"] for one in run.of("worker") if one["worker"] == 1)
    assert [one["what"] for one in run.of("fault")] == [f"kill worker 1 (process {victim} on b)"]
    assert run.of("links") == [], "between mere processes there are none"
    assert out.stat().st_uid == (NOBODY if os.geteuid() == 0 else os.geteuid())
    assert unprivileged("twin", "list", "--json").stdout == "[]\n"
    assert list(place.glob("cordee-twin-*/t*")) == []
