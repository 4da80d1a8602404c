"""A host is lost with a part of the only replica: another host continues from what it has of it in its memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cordee.core.errors import WorkersLost
from cordee.runtime.keeping import MEMORY, PREFIX, Kept
from cordee.twin.twin import Twin
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


def start(twin: Twin, out: Path, plan: str, **settings: object) -> list[subprocess.Popen[str]]:
    """The command on each host, with a folder that all see and nothing on disk before the end."""
    words = [sys.executable, "-m", "cordee", "train", str(JOBS / "part_lost.py"), "--out", str(out)]
    words += [word for name, value in {"save": 0, **settings}.items() for word in ("--set", f"{name}={value}")]
    hosts = twin.cluster.names
    words += ["--plan", plan, "--workers", "1", "--threads", "1", "--trusted-network", "--rendezvous", "a:29400"]
    words += ["--nodes", str(len(hosts)), "--token-file", str(twin.entry.token_file)]
    return [subprocess.Popen(twin.command(host, words), stderr=subprocess.PIPE, text=True) for host in hosts]


def assert_exact(run: Run, alone: Run) -> None:
    """What one process has trained; of a step that was computed again the last loss counts."""
    assert_audited(run)
    losses = {event["step"]: event["loss"] for event in run.of("step")}
    assert [losses[step] for step in sorted(losses)] == pytest.approx(alone.losses, rel=1e-10)
    assert distance(run, alone) < 1e-9
    assert run.result["order_sha256"] == alone.result["order_sha256"]


@pytest.mark.timeout(300)
def test_the_newest_state_is_in_the_memory_of_the_other_host(up: Up, warm: int, tmp_path: Path) -> None:
    """Nothing is on disk; the part of the lost host has come to the first one while they trained."""
    twin, out, now = up("2").made, tmp_path / "run", tmp_path / "now"
    (once := tmp_path / "once").touch()
    hosts = start(twin, out, "pipeline=2,recover=fewer,copy_every=3", file=once, waits=now)
    try:
        until(lambda: now.exists() or any(one.poll() is not None for one in hosts))
        first, lost = {hosts[0].pid, *(one.pid for one in descendants(hosts[0].pid))}, kill(hosts[1])
        said = hosts[0].communicate(timeout=DEADLINE_S)[1]
    finally:
        for one in hosts:
            kill(one)
    assert hosts[0].returncode == 0, said
    (told,) = Run(out).of("continued")
    assert (told["step"], told["source"], told["workers"]) == (9, "memory", 1)
    assert_exact(Run(out), train("part_lost", tmp_path / "alone"))
    assert not left_in_memory(first)
    with Kept(True):  # the next launcher on the machine removes what a killed one has left
        assert not left_in_memory(lost)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("count", "plan", "codes", "then"),
    [
        ("2", "pipeline=2,recover=full", [0, 0], (2, ["a", "b"])),
        ("3", "pipeline=3,recover=fewer", [0, WorkersLost.code, 0], (2, ["a", "c"])),
    ],
)
def test_hosts_come_back_to_a_run_that_continues(
    up: Up, warm: int, tmp_path: Path, count: str, plan: str, codes: list[int], then: tuple[int, list[str]]
) -> None:
    """A worker is killed, and its launcher is not; with three hosts none has all parts, and one brings its own."""
    twin, out = up(count).made, tmp_path / "run"
    (once := tmp_path / "once").touch()
    hosts = start(twin, out, f"{plan},copy_every=3", file=once)
    try:
        said = [one.communicate(timeout=DEADLINE_S)[1] for one in hosts]
    finally:
        for one in hosts:
            kill(one)
    assert [one.returncode for one in hosts] == codes, said
    run = Run(out)
    (told,) = run.of("continued")
    workers, names = then
    assert (told["step"], told["source"], told["workers"]) == (9, "memory", workers)
    assert sorted(one["host"] for one in run.of("worker")[-workers:]) == names
    assert_exact(run, train("part_lost", tmp_path / "alone"))
