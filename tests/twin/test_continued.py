"""A host is lost with a part of the only replica: another host continues from what it has of it in its memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cordee.runtime.keeping import MEMORY, PREFIX, Kept
from harness import DEADLINE_S, JOBS, Run, assert_audited, descendants, distance, train, until
from twin.emulated import Up


def kill(process: subprocess.Popen[str]) -> set[int]:
    """A launcher, and what it has started itself; their numbers."""
    pids = {process.pid, *(one.pid for one in descendants(process.pid))}
    for pid in pids if process.poll() is None else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def left_in_memory(pids: set[int]) -> list[Path]:
    """What launchers among these processes hold in the memory of this machine."""
    return [one for one in MEMORY.glob(f"{PREFIX}*") if int(one.name.removeprefix(PREFIX).partition("-")[0]) in pids]


@pytest.mark.timeout(300)
def test_the_newest_state_is_in_the_memory_of_the_other_host(up: Up, warm: int, tmp_path: Path) -> None:
    """Nothing is on disk; the part of the lost host has come to the first one while they trained."""
    twin, out, now = up("2").made, tmp_path / "run", tmp_path / "now"
    (once := tmp_path / "once").touch()
    words = [sys.executable, "-m", "cordee", "train", str(JOBS / "part_lost.py"), "--out", str(out)]
    words += ["--set", f"file={once}", "--set", f"waits={now}", "--set", "save=0", "--threads", "1"]
    words += ["--plan", "pipeline=2,recover=fewer,copy_every=3", "--workers", "1", "--trusted-network"]
    words += ["--rendezvous", "a:29400", "--nodes", "2", "--token-file", str(twin.entry.token_file)]
    hosts = [subprocess.Popen(twin.command(host, words), stderr=subprocess.PIPE, text=True) for host in "ab"]
    try:
        until(lambda: now.exists() or any(one.poll() is not None for one in hosts))
        first, lost = {hosts[0].pid, *(one.pid for one in descendants(hosts[0].pid))}, kill(hosts[1])
        said = hosts[0].communicate(timeout=DEADLINE_S)[1]
    finally:
        for one in hosts:
            kill(one)
    assert hosts[0].returncode == 0, said
    run, alone = Run(out), train("part_lost", tmp_path / "alone")
    (told,) = run.of("continued")
    assert (told["step"], told["source"], told["workers"]) == (9, "memory", 1)
    assert_audited(run)
    losses = {event["step"]: event["loss"] for event in run.of("step")}
    assert [losses[step] for step in sorted(losses)] == pytest.approx(alone.losses, rel=1e-10)
    assert distance(run, alone) < 1e-9
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert not left_in_memory(first)
    with Kept(True):  # the next launcher on the machine removes what a killed one has left
        assert not left_in_memory(lost)
