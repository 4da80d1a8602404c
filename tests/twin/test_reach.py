"""Two hosts reach the coordinator, but not each other: they are named within seconds, and one of them is evicted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cordee.core.errors import Evicted, RendezvousError
from cordee.twin.network import namespace_of
from harness import DEADLINE_S, Run, assert_same, command, start, train
from records import events_until
from twin.emulated import Emulated, Up

WORDS = ("--deadline", "300", "--set", "epochs=1")


def at(twin: Emulated, host: str, *words: str) -> str:
    """What `ip` says on a host."""
    space = namespace_of(twin.name, host)
    done = subprocess.run(["ip", "-n", space, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return done.stdout


def part(twin: Emulated, one: str, other: str) -> None:
    """What one sends to the other is lost without a word, both ways."""
    for here, there in ((one, other), (other, one)):
        address = at(twin, there, "-o", "-4", "addr", "show", "eth0").split(" inet ")[1].split("/")[0]
        at(twin, here, "neigh", "replace", address, "dev", "eth0", "lladdr", "02:00:00:00:00:01")


def test_hosts_that_never_reach_each_other(up: Up, job: Path, tmp_path: Path) -> None:
    twin = up("3")
    part(twin, "b", "c")
    done = command("twin", "run", job, "--name", twin.name, "--out", tmp_path / "run", *WORDS)
    assert done.returncode == RendezvousError.code, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "worker 1 on b cannot reach worker 2 on c" in last or "worker 2 on c cannot reach worker 1 on b" in last
    assert "no answer within 8 s" in last and "check routes and firewalls between these two" in last


@pytest.mark.parametrize("regroups", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_hosts_that_are_parted_while_they_train(regroups: bool, up: Up, warm: int, job: Path, tmp_path: Path) -> None:
    """One of the two is evicted and told why; the others go on, and train what one process trains.

    Also where another worker was just lost: then it is the group that forms anew which cannot.
    """
    twin, out = up("4" if regroups else "3"), tmp_path / "run"
    with start("twin", "run", job, "--name", twin.name, "--out", out, "--deadline", "300", "--set", "epochs=10") as run:
        try:
            events_until(out, run, 5)
            part(twin, "b", "c")
            if regroups:
                twin.say("kill", "3")
            _, complaints = run.communicate(timeout=2 * DEADLINE_S)
        finally:
            run.kill()
    assert run.returncode == 0, complaints
    found = Run(out)
    (pair,) = [one["message"] for one in found.of("warning") if "do not reach each other" in one["message"]]
    assert "worker 1 on b" in pair and "worker 2 on c" in pair and "no answer within 4 s" in pair
    (lost,) = [one for one in found.of("failure") if one["worker"] == 2]
    why = "it does not reach worker 1 on b (no answer within 4 s)"
    assert lost["reason"] == f"its host c was evicted: {why}"
    assert f"twin: host c ended with code {Evicted.code}: cordee: this host was evicted" in complaints
    assert why in complaints.rpartition("this host was evicted")[2]
    assert_same(found, train(job, tmp_path / "alone", epochs=10))
