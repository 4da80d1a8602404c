"""The coordinator's host is gone: the next one in their order coordinates, and its command ends with the result."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cordee.core.machine import listeners
from harness import DEADLINE_S, Run, assert_same, distance, free_port, job_file, start, until
from records import read

Reference = Callable[..., Run]
Host = subprocess.Popen[str]


@contextlib.contextmanager
def started(outs: list[Path], awaited: Path, *words: str) -> Iterator[list[Host]]:
    """A command for each folder, on loopback; the first one coordinates. All wait for a file after step 25."""
    port, hosts = free_port(), list[Host]()
    given = ["--workers", "1", "--threads", "1", "--set", f"awaits={awaited}", *words]
    given += ["--rendezvous", f"127.0.0.1:{port}", "--nodes", str(len(outs)), "--out"]
    try:
        for out in outs:  # they are numbered as they come
            hosts.append(start("train", job_file("steady"), *given, out))
            until(lambda: listeners(port) or hosts[0].poll() is not None)
            if len(hosts) < len(outs):
                heard(outs[0], f": {len(hosts)} of {len(outs)} hosts are here")
        yield hosts
    finally:
        for host in hosts:
            host.kill()
            sys.stderr.write("".join(host.communicate(timeout=DEADLINE_S)))  # shown when a test fails


def heard(out: Path, message: str) -> None:
    """Wait until such a warning is on record."""
    record = out / "events.jsonl"
    until(lambda: record.exists() and any(message in one.get("message", "") for one in read(out)))


def reached(out: Path, host: Host, event: str, count: int) -> None:
    """Wait until so many such events are on record."""

    def look() -> bool:
        assert host.poll() is None, host.communicate()
        return (out / "events.jsonl").exists() and sum(one["event"] == event for one in read(out)) >= count

    until(look)


@pytest.mark.parametrize("killed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_its_launcher_is_killed(killed: int, reference: Reference, warm: int, tmp_path: Path) -> None:
    """In a folder that all hosts see, the record is one, and proves what was trained."""
    out, awaited = tmp_path / "run", tmp_path / "awaited"
    with started([out] * 3, awaited) as hosts:
        reached(out, hosts[0], "step", 5)
        for number in range(killed):
            hosts[number].kill()
            reached(out, hosts[number + 1], "coordinator", number + 2)
        awaited.touch()
        ends = [host.communicate(timeout=DEADLINE_S) for host in hosts[killed:]]
        assert [host.returncode for host in hosts[killed:]] == [0] * (3 - killed), ends
    run = Run(out)
    assert sorted(one["worker"] for one in run.of("failure")) == list(range(killed))
    assert "the launcher on" in run.of("coordinator")[1]["reason"]
    assert_same(run, reference("steady"))


def test_its_launcher_is_killed_where_each_host_has_a_folder_of_its_own(
    reference: Reference, warm: int, tmp_path: Path
) -> None:
    """The record goes on in that of the host that takes over, with all steps that its workers remember."""
    outs, awaited = [tmp_path / "one", tmp_path / "two"], tmp_path / "awaited"
    with started(outs, awaited) as hosts:
        reached(outs[0], hosts[0], "step", 5)
        hosts[0].kill()
        reached(outs[1], hosts[1], "coordinator", 1)
        awaited.touch()
        _, said = hosts[1].communicate(timeout=DEADLINE_S)
        assert hosts[1].returncode == 0, said
    run, alone = Run(outs[1]), reference("steady")
    assert [one["step"] for one in run.of("step")] == [one["step"] for one in alone.of("step")]
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert distance(run, alone) <= 1e-9


def test_nobody_is_left_to_take_over(warm: int, tmp_path: Path) -> None:
    """All launchers are killed: no process stays, as after every test of this folder."""
    out, awaited = tmp_path / "run", tmp_path / "awaited"
    with started([out] * 2, awaited) as hosts:
        reached(out, hosts[0], "step", 5)
        for host in hosts:
            host.kill()
