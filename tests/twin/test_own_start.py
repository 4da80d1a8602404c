"""Hosts on which the user starts a run himself, by the same command on each, and what happens when one goes away."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.core.errors import SecurityError
from cordee.group.token import write_token
from cordee.runtime.rendezvous import Rendezvous
from harness import DEADLINE_S, Run, assert_same, train
from records import events_until
from twin.emulated import Emulated, Up

Launchers = dict[str, subprocess.Popen[str]]


@contextlib.contextmanager
def started(twin: Emulated, job: Path, out: Path) -> Iterator[Launchers]:
    """Two workers on `a`, one on `b`, once they have taken five steps; each host's command."""
    token = out.with_name("token")
    write_token(token)
    running: Launchers = {}
    for host, workers in (("a", "2"), ("b", "1")):
        words = [sys.executable, "-m", "cordee", "train", str(job), "--workers", workers, "--nodes", "2"]
        words += ["--rendezvous", "a:29500", "--token-file", str(token), "--trusted-network"]
        words += ["--out", str(out if host == "a" else out.with_name("elsewhere"))]
        running[host] = subprocess.Popen(
            twin.made.command(host, words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        events_until(out, running["a"], 5)
        yield running
    finally:
        for process in running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=DEADLINE_S)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """A launcher's exit code, and what it said."""
    said, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, said


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_given_up_and_notices(up: Up, job: Path, tmp_path: Path) -> None:
    twin, out = up("2"), tmp_path / "run"
    with started(twin, job, out) as running:
        twin.say("cut", "b")
        assert ended(running["a"])[0] == 0
        assert ended(running["b"])[0] == 23
    assert_same(Run(out), train(job, tmp_path / "alone"))
    assert Run(out).result["failures"] == 1


@pytest.mark.slow
def test_the_launcher_of_a_host_is_killed(up: Up, job: Path, tmp_path: Path) -> None:
    twin, out = up("2"), tmp_path / "run"
    with started(twin, job, out) as running:
        running["b"].kill()
        code, said = ended(running["a"])
        assert code == 0, said
    assert_same(Run(out), train(job, tmp_path / "alone"))
    assert (Run(out).result["workers"], Run(out).result["failures"]) == (3, 1)


def test_off_loopback_nothing_starts_without_the_users_word(tmp_path: Path) -> None:
    write_token(tmp_path / "token")
    with pytest.raises(SecurityError, match="--trusted-network"):
        Rendezvous("192.0.2.1", 1, 2, tmp_path / "token").address()
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(SecurityError, match="chmod 600"):
        Rendezvous("192.0.2.1", 1, 2, tmp_path / "token", trusted_network=True).address()
