"""A worker that makes the others wait is named, with the cause, while the run goes on; equal workers never are."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from cordee.core.events import Event, WorkerEvent
from harness import DEADLINE_S, Run, train

DELAY_S = 0.15
STEPS = 70
"""Of at least a tenth of a second: several windows."""
STOPPED_S, RUNS_S = 0.12, 0.04


class Pulses:
    """Stops a worker again and again."""

    def __init__(self, worker: int) -> None:
        self._worker, self._over = worker, threading.Event()

    def listen(self, event: Event) -> None:
        if isinstance(event, WorkerEvent) and event.worker == self._worker:
            threading.Thread(target=self._pulse, args=(event.pid,), daemon=True).start()

    def _pulse(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            while not self._over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                time.sleep(RUNS_S)

    def __enter__(self) -> Pulses:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


def named(run: Run) -> list[tuple[int, str]]:
    """Who was named, and with which cause."""
    return [(one["worker"], one["cause"]) for one in run.of("straggler") if not one["over"]]


@pytest.mark.parametrize("where", ["data", "compute", "callbacks"])
def test_a_delay_names_the_worker_and_where_it_is(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = train("delayed", tmp_path / "run", workers=3, where=where, worker=2, seconds=DELAY_S, steps=STEPS)
    assert named(run) == [(2, where)], run.of("straggler")
    event = run.of("straggler")[0]
    assert event["took_ms"] >= 0.8 * DELAY_S * 1e3 > 3 * event["usual_ms"]


def test_a_worker_that_is_stopped_now_and_then_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cordee.runtime.engines.local.STOPPED_S", DEADLINE_S)  # the test may sleep for too long
    with Pulses(1) as pulses:
        run = train("delayed", tmp_path / "run", workers=2, busy=0.02, steps=2 * STEPS, listen=pulses.listen)
    assert named(run) == [(1, "paused")], run.of("straggler")


def test_equal_workers_on_a_busy_machine_are_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five workers and a process that does nothing but compute."""
    monkeypatch.chdir(tmp_path)
    over = threading.Event()
    hog = threading.Thread(target=lambda: [sum(range(10_000)) for _ in iter(over.is_set, True)], daemon=True)
    hog.start()
    run = train("delayed", tmp_path / "run", workers=5, busy=0.04, steps=STEPS)
    over.set()
    assert named(run) == [], run.of("straggler")
