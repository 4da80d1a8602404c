"""A run whose workers are in places of a cluster, without a cluster: each place is a process on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cordee.core.errors import CordeeError, PlanError, UsageError
from cordee.core.plan import Plan
from cordee.group.messages import Command
from cordee.runtime.commands import ask
from cordee.runtime.engines import agent
from cordee.runtime.engines.agent import Outcome, hold_place
from cordee.runtime.engines.choice import Chosen
from cordee.runtime.engines.places import Asked, drive
from cordee.runtime.launch import Launch
from cordee.runtime.spec import Target
from engines.gates import Gates
from harness import DEADLINE_S, Run, assert_same, descendants, job_file, train, until


class Here:
    """A cluster whose places are on this machine."""

    name, host, patience_s, advice = "here", "127.0.0.1", DEADLINE_S, "look at this test"

    def __init__(self, counts: Sequence[int]) -> None:
        self.closed = threading.Event()
        self.calls = 0

    def call(self, place: int, assignment: bytes) -> Outcome:
        self.calls += 1
        return hold_place(assignment)

    def close(self) -> None:
        self.closed.set()


def run(out: Path, workers: int, *, each: int = 1, plan: str = "auto", cluster: Any = Here, **settings: str) -> Run:
    """Train `tests/jobs/changing.py` in places of this cluster."""
    launch = Launch(
        Target("job", str(job_file("changing")), settings),
        workers,
        Plan.parse(plan),
        out,
        threads=1,
        deadline_s=DEADLINE_S,
        engine=Chosen("here", None),
    )
    drive(launch, lambda event: None, None, cluster, Asked(each=each))
    return Run(out)


def agents() -> list[int]:
    """The processes that hold the places."""
    found = []
    for one in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{one.pid}/cmdline").read_bytes()
            found += [one.pid] * (b"cordee.runtime.engines.agent" in words)
    return found


@pytest.mark.parametrize("plan", ["auto", "sync=server"])
def test_places_train_the_same(alone: Run, tmp_path: Path, plan: str) -> None:
    found = run(tmp_path / "run", 3, each=2, plan=plan)
    assert_same(found, alone)
    assert sorted(one["node"] for one in found.of("worker")) in ([1, 1, 2], [1, 2, 2])
    assert not list((tmp_path / "run").glob(".*"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_place_that_is_lost_is_filled_again(alone: Run, tmp_path: Path, number: signal.Signals) -> None:
    """By SIGTERM, as where a machine is taken away, its workers leave between two steps."""

    def take_away() -> str:
        os.kill(agents()[0], number)
        return "" if number == signal.SIGKILL else "1"  # until another one has come, until this one has left

    gates = Gates(tmp_path, at_6=take_away, at_12=lambda: "2")
    found = run(tmp_path / "run", 2, **gates.settings)
    gates.end()
    assert_same(found, alone)
    assert [one["worker"] for one in found.of("joined")] == [2]
    assert len(found.of("failure")) == (number == signal.SIGKILL) and len(found.of("left")) == (
        number == signal.SIGTERM
    )


def test_results_come_from_where_the_folder_is_not_seen(
    alone: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on machines without a file system in common."""

    def elsewhere(self: Here, place: int, assignment: bytes) -> Outcome:
        given = agent.decode_assignment(assignment)
        return hold_place(msgspec.json.encode(msgspec.structs.replace(given, seen="not there")))

    monkeypatch.setattr(Here, "call", elsewhere)
    found = run(tmp_path / "run", 2)
    assert_same(found, alone)
    assert found.of("checkpoint") and list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_host_that_does_not_fit_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordee.runtime.engines.places.versions", lambda: {"torch": "1.0"})
    before = descendants(os.getpid())
    with pytest.raises(CordeeError, match=r"place \d on .*: host .* has torch .* instead of 1.0"):
        run(tmp_path / "run", 2)
    until(lambda: descendants(os.getpid()) <= before)


def test_more_workers_are_refused_and_fewer_are_not(alone: Run, tmp_path: Path) -> None:
    said = []

    def ask_for_others() -> str:
        for workers in (3, 1):
            try:
                said.append(ask(tmp_path / "run", Command("scale", workers)))
            except UsageError as error:
                said.append(str(error))
        return "1"

    gates = Gates(tmp_path, at_6=ask_for_others)
    assert_same(run(tmp_path / "run", 2, **gates.settings), alone)
    assert "the workers have places of here. Stop the run" in said[0] and "2 → 1 worker" in said[1]


def test_a_run_in_places_does_not_continue_by_itself(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"recover=fewer does not go with --engine here: places"):
        run(tmp_path / "run", 2, plan="recover=fewer")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("changing", tmp_path_factory.mktemp("alone"))
