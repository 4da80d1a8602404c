"""Two hosts reach the coordinator, but not each other: they are named within seconds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cordee.core.errors import RendezvousError
from cordee.twin.network import namespace_of
from harness import DEADLINE_S, Run, assert_same, command, start, train, until
from records import events_until
from twin.emulated import Emulated, Up

WORDS = ("--deadline", "300", "--set", "epochs=1")


def at(twin: Emulated, host: str, *words: str) -> str:
    """What `ip` says on a host."""
    space = namespace_of(twin.name, host)
    done = subprocess.run(["ip", "-n", space, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return done.stdout


def part(twin: Emulated, one: str, other: str, *, again: bool = False) -> None:
    """What one sends to the other is lost without a word, both ways; or not any more."""
    for here, there in ((one, other), (other, one)):
        address = at(twin, there, "-o", "-4", "addr", "show", "eth0").split(" inet ")[1].split("/")[0]
        if again:
            at(twin, here, "neigh", "del", address, "dev", "eth0")
        else:
            at(twin, here, "neigh", "replace", address, "dev", "eth0", "lladdr", "02:00:00:00:00:01")


def test_hosts_that_never_reach_each_other(up: Up, job: Path, tmp_path: Path) -> None:
    twin = up("3")
    part(twin, "b", "c")
    done = command("twin", "run", job, "--name", twin.name, "--out", tmp_path / "run", *WORDS)
    assert done.returncode == RendezvousError.code, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "worker 1 on b cannot reach worker 2 on c" in last or "worker 2 on c cannot reach worker 1 on b" in last
    assert "no answer within 8 s" in last and "check routes and firewalls between these two" in last


@pytest.mark.slow
def test_hosts_that_are_parted_for_a_while(up: Up, warm: int, job: Path, tmp_path: Path) -> None:
    """It is on record at once; when they reach each other again, the training goes on, and is the same."""
    twin, out = up("3"), tmp_path / "run"
    with start("twin", "run", job, "--name", twin.name, "--out", out, "--deadline", "300", "--set", "epochs=10") as run:
        try:
            events_until(out, run, 5)
            part(twin, "b", "c")
            until(lambda: any("cannot reach" in one["message"] for one in Run(out).of("warning")))
            part(twin, "b", "c", again=True)
            _, complaints = run.communicate(timeout=2 * DEADLINE_S)
        finally:
            run.kill()
    assert run.returncode == 0, complaints
    assert "any more: no answer within 8 s" in complaints
    assert_same(Run(out), train(job, tmp_path / "alone", epochs=10))
