"""The coordinator's host is gone: the next one in their order coordinates, and its command ends with the result."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cordee.core.machine import listeners
from cordee.group.messages import Command
from cordee.runtime.commands import ask
from harness import DEADLINE_S, Run, assert_audited, assert_same, distance, free_port, job_file, start, train, until
from records import read

Reference = Callable[..., Run]
Host = subprocess.Popen[str]


@contextlib.contextmanager
def started(outs: list[Path], *words: str, job: str = "steady") -> Iterator[list[Host]]:
    """A command for each folder, on loopback; the first one coordinates."""
    port, hosts = free_port(), list[Host]()
    given = ["--workers", "1", "--threads", "1", *words]
    given += ["--rendezvous", f"127.0.0.1:{port}", "--nodes", str(len(outs)), "--out"]
    try:
        for out in outs:  # they are numbered as they come
            hosts.append(start("train", job_file(job), *given, out))
            until(lambda: listeners(port) or hosts[0].poll() is not None)
            if len(hosts) < len(outs):
                heard(outs[0], f": {len(hosts)} of {len(outs)} hosts are here")
        yield hosts
    finally:
        for host in hosts:
            host.kill()
            sys.stderr.write("".join(host.communicate(timeout=DEADLINE_S)))  # shown when a test fails


def awaiting(file: Path) -> list[str]:
    """All workers wait for the file after step 25."""
    return ["--set", f"awaits={file}"]


def heard(out: Path, message: str) -> None:
    """Wait until such a warning is on record."""
    record = out / "events.jsonl"
    until(lambda: record.exists() and any(message in one.get("message", "") for one in read(out)))


def events_of(out: Path, event: str) -> list[Any]:
    """Those on record so far."""
    return [one for one in read(out) if one["event"] == event]


def reached(out: Path, host: Host, event: str, count: int) -> None:
    """Wait until so many such events are on record."""

    def look() -> bool:
        assert host.poll() is None, host.communicate()
        return (out / "events.jsonl").exists() and len(events_of(out, event)) >= count

    until(look)


@pytest.mark.parametrize("killed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_its_launcher_is_killed(killed: int, reference: Reference, warm: int, tmp_path: Path) -> None:
    """In a folder that all hosts see, the record is one, and proves what was trained."""
    out, awaited = tmp_path / "run", tmp_path / "awaited"
    with started([out] * 3, *awaiting(awaited)) as hosts:
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


def test_workers_come_in_and_are_replaced_after_that(warm: int, tmp_path: Path) -> None:
    """On the host that took over and on the other one: by a command, and in the place of one that is killed."""
    out, pids, gates = tmp_path / "run", tmp_path / "pids", [tmp_path / f"gate-{step}" for step in (4, 12)]
    pids.mkdir()
    words = ["--set", f"gates=4:{gates[0]} 12:{gates[1]}", "--set", f"pids={pids}", "--plan", "replace=true"]
    with started([out] * 3, *words, job="changing") as hosts:
        until(gates[0].with_name("gate-4.here").exists)
        reached(out, hosts[0], "step", 1)
        hosts[0].kill()
        until(lambda: len(events_of(out, "coordinator")) > 1 and events_of(out, "failure"))
        assert "3, 4 start" in ask(out, Command("scale", 4))
        gates[0].write_text("4")
        until(gates[1].with_name("gate-12.here").exists)
        os.kill(int((pids / "2").read_text()), signal.SIGKILL)
        gates[1].touch()
        ends = [host.communicate(timeout=DEADLINE_S) for host in hosts[1:]]
        assert [host.returncode for host in hosts[1:]] == [0, 0], ends
    run = Run(out)
    assert [one["worker"] for one in run.of("failure")] == [0, 2]
    came = {one["worker"]: one["node"] for one in run.of("worker") if one["worker"] > 2}
    joined = {one["worker"]: one["replaces"] for one in run.of("joined")}
    assert (joined, came) == ({3: None, 4: None, 5: 2}, {3: 1, 4: 2, 5: 2})
    assert_same(run, train("changing", tmp_path / "alone"))


@pytest.mark.slow
def test_the_parts_of_a_window_are_handed_out_on(warm: int, tmp_path: Path) -> None:
    """A window is open most of the time: the next coordinator knows which of its parts are done, and held by whom."""
    out, awaited = tmp_path / "run", tmp_path / "awaited"
    words = [*awaiting(awaited), "--set", "delay=0.03", "--plan", "sync=local,local_steps=5"]
    with started([out] * 3, *words) as hosts:
        reached(out, hosts[0], "step", 5)
        hosts[0].kill()
        reached(out, hosts[1], "coordinator", 2)
        awaited.touch()
        ends = [host.communicate(timeout=DEADLINE_S) for host in hosts[1:]]
        assert [host.returncode for host in hosts[1:]] == [0, 0], ends
    run = Run(out)
    assert [one["worker"] for one in run.of("failure")] == [0]
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)
    assert_audited(run)


def test_its_launcher_is_killed_where_each_host_has_a_folder_of_its_own(
    reference: Reference, warm: int, tmp_path: Path
) -> None:
    """The record goes on in that of the host that takes over, with all steps that its workers remember."""
    outs, awaited = [tmp_path / "one", tmp_path / "two"], tmp_path / "awaited"
    with started(outs, *awaiting(awaited)) as hosts:
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
    with started([out] * 2, *awaiting(awaited)) as hosts:
        reached(out, hosts[0], "step", 5)
        for host in hosts:
            host.kill()
