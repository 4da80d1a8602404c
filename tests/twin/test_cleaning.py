"""Whatever ends a twin, the next command clears away what it left: namespaces, cables, groups, processes, records."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.twin.registry import Registry
from cordee.twin.twin import Twin
from harness import DEADLINE_S, command, free_port, start, until
from twin.emulated import Emulated, await_entry, cables, left, namespaces

HOSTS = "2 x cpu=0.5 link=10mbit"


def listed() -> list[str]:
    done = command("twin", "list", "--json")
    assert done.returncode == 0, done.stderr
    return [one["name"] for one in json.loads(done.stdout)]


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """It ends, and if the test fails, the next command clears away what it leaves."""
    try:
        yield
    except BaseException:
        process.kill()
        process.wait(DEADLINE_S)
        listed()
        raise
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def run_killed_after(seconds: float, job: Path, out: Path) -> None:
    before = cables()
    process = start("twin", "run", job, "--hosts", HOSTS, "--out", out, start_new_session=True)
    with ended(process):
        name = await_entry(process).name
        time.sleep(seconds)
        numbers = set(namespaces(name).values())
        process.kill()
        process.wait(DEADLINE_S)
        numbers |= set(namespaces(name).values())
        assert name not in listed()
        assert left(name, numbers, before) == {}, f"killed after {seconds:.3f} s"


def up_killed_after(seconds: float) -> bool:
    """Whether it was whole by then; then it stays, and otherwise nothing is left of it."""
    before, name = cables(), f"k{secrets.token_hex(4)}"
    process = start("twin", "up", "--hosts", HOSTS, "--name", name)
    try:
        with ended(process):
            until(lambda: (Registry().folder / name / "twin.json").exists() or process.poll() is not None)
            time.sleep(seconds)
            process.kill()
            process.wait(DEADLINE_S)
            numbers = set(namespaces(name).values())
            whole = name in listed()
        if whole:
            assert [Emulated(name).python(host, "import socket; print(socket.gethostname())") for host in "ab"] == [
                "a\n",
                "b\n",
            ]
        else:
            assert left(name, numbers, before) == {}, f"killed after {seconds:.3f} s"
        return whole
    finally:
        command("twin", "down", name)
        assert left(name, before=before) == {}


def test_a_killed_twin_leaves_nothing(able: None, job: Path, tmp_path: Path) -> None:
    draw = random.Random()
    for number, longest in enumerate((0.1, 0.3, 1.0, 2.0, 3.0)):
        run_killed_after(draw.uniform(0, longest), job, tmp_path / str(number))


def test_a_twin_that_is_killed_while_it_is_made_leaves_nothing(able: None) -> None:
    draw = random.Random()
    # On a busy machine the kill may come late: then again.
    assert not all(up_killed_after(0.0) for _ in range(5))
    up_killed_after(draw.uniform(0, 0.3))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_killed_twins_leave_nothing(able: None, job: Path, tmp_path: Path) -> None:
    draw = random.Random()
    for number in range(50):
        run_killed_after(draw.uniform(0, (0.1, 0.5, 2.0, 8.0)[number % 4]), job, tmp_path / str(number))
    # On a quiet machine it is whole after a tenth of a second, on a busy one later.
    found = [up_killed_after(draw.uniform(0, (0.1, 0.6)[number % 2])) for number in range(20)]
    assert not all(found)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_end_ends_in_good_order(
    number: signal.Signals, able: None, job: Path, tmp_path: Path
) -> None:
    before, out = cables(), tmp_path / "run"
    process = start("twin", "run", job, "--hosts", HOSTS, "--out", out, "--set", "epochs=1000")
    with ended(process):
        name = await_entry(process).name
        numbers = set(namespaces(name).values())
        events = out / "events.jsonl"
        until(lambda: process.poll() is not None or (events.exists() and '"event":"step"' in events.read_text()))
        os.kill(process.pid, number)
        _, complaints = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130, complaints
        assert f"the same `cordee twin run` with --out {out} --resume" in complaints
        assert "--rendezvous" not in complaints, "where these hosts met there is nothing any more"
        assert left(name, numbers, before) == {}, "by itself: no other command was needed"
        assert any(out.glob("checkpoints/step-*"))


def test_a_run_that_is_stopped_before_its_workers_start_removes_all(job: Path, tmp_path: Path) -> None:
    words = ("--hosts", "2", "--processes", "--port", str(free_port()), "--out", tmp_path / "run")
    process = start("twin", "run", job, *words)
    with ended(process):
        entry = await_entry(process)
        process.terminate()
        _, complaints = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, complaints) == (130, "cordee: stopped by SIGTERM\n")
        assert not entry.folder.exists(), "by itself: no other command was needed"


def test_a_host_that_dies_before_they_meet_ends_the_run(job: Path, tmp_path: Path) -> None:
    words = ("--hosts", "2", "--processes", "--port", str(free_port()), "--out", tmp_path / "run")
    process = start("twin", "run", job, *words)
    with ended(process):
        registry = Registry()
        twin = Twin(await_entry(process, whole=True), registry)
        until(lambda: twin.processes("b") or process.poll() is not None)
        twin.end_processes("b")
        _, complaints = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 128 + 9, complaints
        assert "twin: host b was ended by signal 9 before the hosts had met: " in complaints
        assert not twin.entry.folder.exists()
