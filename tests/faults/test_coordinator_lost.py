"""The coordinator dies: its launcher starts another one, and the workers, which train on meanwhile, come back to it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cordee.core.events import CoordinatorEvent, Event, StepEvent, WorkerEvent
from harness import Run, assert_audited, assert_same, train

Reference = Callable[..., Run]
WORKERS = 3


class Blows:
    """Listens to a run, and sends a signal to its coordinator, or to a worker, when a step is on record."""

    def __init__(self, over: Path, at: Mapping[int, str], how: signal.Signals, terms: int) -> None:
        self.over, self.at, self.how, self.terms = over, dict(at), how, terms
        self.pids: dict[str, int] = {}
        self.workers: set[tuple[int, int]] = set()
        self._turn = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._turn:
            match event:
                case CoordinatorEvent(term=term, pid=pid):
                    self.pids["coordinator"], self.term = pid, term
                    if 1 < term < self.terms:  # before anyone is back
                        os.kill(pid, self.how)
                case WorkerEvent(worker=worker, pid=pid):
                    self.pids[str(worker)] = pid
                    self.workers.add((worker, pid))
                case StepEvent(step=step):
                    for due in [one for one in self.at if one <= step]:
                        for name in self.at.pop(due).split():
                            os.kill(self.pids[name], self.how if name == "coordinator" else signal.SIGKILL)
            if not self.at and self.term == self.terms:
                self.over.touch()


def run_struck(
    tmp_path: Path, at: Mapping[int, str], *, how: signal.Signals = signal.SIGKILL, terms: int = 2, plan: str = "auto"
) -> Run:
    """A run whose coordinator is struck, and is there again at its end; no worker was started a second time."""
    blows = Blows(tmp_path / "over", at, how, terms)
    run = train("steady", tmp_path / "run", workers=WORKERS, plan=plan, listen=blows, awaits=blows.over)
    assert not blows.at, "the moment to strike never came"
    assert len(blows.workers) == WORKERS
    begun = [(one["term"], bool(one["reason"])) for one in run.of("coordinator")]
    assert begun == [(1, False), *((number, True) for number in range(2, terms + 1))]
    return run


@pytest.mark.parametrize(
    ("at", "lost"),
    [
        pytest.param({5: "coordinator"}, [], id="alone"),
        pytest.param({5: "coordinator 1"}, [1], id="with a worker, after it"),
        pytest.param({5: "0 coordinator"}, [0], id="with the worker that speaks for all, before it"),
    ],
)
def test_it_is_killed(at: dict[int, str], lost: list[int], reference: Reference, tmp_path: Path) -> None:
    run = run_struck(tmp_path, at)
    assert sorted(one["worker"] for one in run.of("failure")) == lost
    assert_same(run, reference("steady"))


def test_it_is_killed_again_and_again(reference: Reference, tmp_path: Path) -> None:
    run = run_struck(tmp_path, {3: "coordinator"}, terms=4)
    assert not run.of("failure")
    assert_same(run, reference("steady"))


@pytest.mark.slow
def test_it_is_stopped(reference: Reference, tmp_path: Path) -> None:
    """One that says nothing any more is ended by its launcher."""
    run = run_struck(tmp_path, {3: "coordinator"}, how=signal.SIGSTOP)
    assert "silent for" in run.of("coordinator")[1]["reason"]
    assert_same(run, reference("steady"))


@pytest.mark.parametrize(
    "plan",
    [
        "sync=local,local_steps=4",
        "sync=server,servers=2",
        pytest.param("sync=server,mode=stale,staleness=2", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("victims", ["coordinator", pytest.param("coordinator 1", marks=pytest.mark.slow)])
def test_whatever_the_plan(plan: str, victims: str, reference: Reference, tmp_path: Path) -> None:
    """Parts of windows are handed out on; parameter servers stay."""
    run = run_struck(tmp_path, {5: victims}, plan=plan)
    assert sorted(one["worker"] for one in run.of("failure")) == [1] * (victims != "coordinator")
    assert_audited(run)
    if plan.startswith("sync=server,servers"):
        assert_same(run, reference("steady"))
