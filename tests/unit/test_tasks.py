"""Tasks in several processes: each once, in spite of processes that die, and errors that arrive as they were."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cordee.core.errors import DataError, WaitedTooLong, WorkerFailed, WorkersLost
from cordee.feed.places import Place
from cordee.feed.sources.seam import Unreadable
from cordee.feed.tasks import run_tasks
from cordee.feed.taskwire import report
from harness import DEADLINE_S, stat_of, until


def twice(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("processes", [0, 2])
def test_every_task_has_its_result_once(processes: int) -> None:
    factor = 3  # a closure, which only goes by value
    results = sorted(run_tasks(lambda number: factor * number, range(20), processes=processes))
    assert results == [(number, 3 * number) for number in range(20)]
    assert list(run_tasks(twice, [], processes=processes)) == []


@pytest.mark.parametrize("processes", [0, 1])
def test_reports_arrive_before_the_result(processes: int) -> None:
    heard: list[int] = []

    def work(number: int) -> int:
        report(number)
        report(number + 1)
        return number

    for number, _ in run_tasks(work, [10, 20], processes=processes, notice=heard.append):
        assert len(heard) >= 2 * (number + 1)
    assert sorted(heard) == [10, 11, 20, 21]
    report(5)  # outside of a task nothing listens
    assert len(heard) == 4


def test_threads_give_the_same_and_report_to_the_caller() -> None:
    both = threading.Barrier(2, timeout=DEADLINE_S)
    heard: list[tuple[int, threading.Thread]] = []

    def work(number: int) -> int:
        if number < 2:
            both.wait()  # two are worked on at a time
        report(number)
        return number**2

    def hear(number: int) -> None:
        heard.append((number, threading.current_thread()))

    results = sorted(run_tasks(work, range(9), processes=0, threads=2, notice=hear))
    assert results == [(number, number**2) for number in range(9)]
    assert sorted(number for number, _ in heard) == list(range(9))
    assert {thread for _, thread in heard} == {threading.current_thread()}


def test_an_error_in_a_thread_ends_the_others_where_they_report_next() -> None:
    ended, failed = threading.Event(), threading.Event()

    def work(number: int) -> None:
        if number:
            failed.set()
            raise DataError("ours")
        failed.wait(DEADLINE_S)
        try:
            while True:
                report(number)
        finally:
            ended.set()

    with pytest.raises(DataError, match="ours"):
        list(run_tasks(work, range(9), processes=0, threads=2))
    assert ended.is_set()


def die_once(place: Path) -> int:
    """Killed when it is run first."""
    if not place.exists():
        place.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_a_task_of_a_killed_process_runs_again(tmp_path: Path) -> None:
    done = dict(run_tasks(die_once, [tmp_path / name for name in "abc"], processes=2))
    assert sorted(done) == [0, 1, 2]


def test_a_task_that_always_kills_its_process_is_given_up(tmp_path: Path) -> None:
    def work(path: Path) -> None:
        with path.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkersLost, match=r"task 0 \(.*count\).* 2 times.*SIGKILL.*memory"):
        list(run_tasks(work, [tmp_path / "count"], processes=1, tries=2))
    assert (tmp_path / "count").read_text() == "xx"


class TwoArguments(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_exceptions_arrive_as_they_were() -> None:
    def fail(kind: str) -> None:
        if kind == "ours":
            raise DataError("a.csv, row 3: no number", next_step="fix it")
        if kind == "file":
            raise Unreadable("the file is empty", Place("/b.csv", "b.csv", 0, ""), 7)
        if kind == "exit":
            sys.exit(3)
        if kind == "strange":
            raise TwoArguments(1, 2)
        raise ZeroDivisionError("by zero")

    with pytest.raises(DataError, match=r"a\.csv, row 3: no number; fix it"):
        list(run_tasks(fail, ["ours"], processes=1))
    with pytest.raises(DataError, match=r"^/b.csv, row 7: the file is empty$"):  # a constructor of its own
        list(run_tasks(fail, ["file"], processes=1))
    with pytest.raises(ZeroDivisionError, match="by zero") as caught:
        list(run_tasks(fail, ["zero"], processes=1))
    assert "in fail" in str(caught.value.__cause__)
    with pytest.raises(WorkerFailed, match="SystemExit: 3"):
        list(run_tasks(fail, ["exit"], processes=1))
    with pytest.raises(WorkerFailed, match="1 and 2"):
        list(run_tasks(fail, ["strange"], processes=1))


def test_what_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(DataError, match="the work cannot be sent to another process"):
        list(run_tasks(lambda number: lock.locked(), [1], processes=1))


def test_a_silent_task_is_an_error() -> None:
    with pytest.raises(WaitedTooLong, match=r"given no sign for 0\.3 s"):
        list(run_tasks(lambda number: time.sleep(DEADLINE_S), [1], processes=1, deadline_s=0.3))


def test_processes_need_no_torch_and_hold_descriptors() -> None:
    reading, writing = os.pipe()
    seen = list(run_tasks(lambda number: "torch" in sys.modules, [1], processes=1, keep_open=[writing]))
    assert seen == [(0, False)]
    os.close(writing)
    assert os.read(reading, 1) == b""  # no process holds it any more
    os.close(reading)


ORPHANS = """
import os, sys, time
from cordee.feed.tasks import run_tasks
from cordee.feed.taskwire import report

def work(number):
    report(os.getpid())
    time.sleep(600)

def show(pid):
    print(pid, flush=True)

list(run_tasks(work, [1, 2], processes=2, notice=show))
"""


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ORPHANS)
    caller = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    children = [int(caller.stdout.readline()) for _ in range(2)]
    caller.kill()
    caller.wait()
    caller.stdout.close()
    until(lambda: all((found := stat_of(pid)) is None or found[0] == "Z" for pid in children))


def test_an_iterator_that_is_left_ends_its_processes() -> None:
    pids: list[int] = []

    def work(number: int) -> int:
        report(os.getpid())
        return number

    results = run_tasks(work, range(50), processes=2, notice=pids.append)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert all(stat_of(pid) is None for pid in pids)


def test_functions_of_a_module_that_cannot_be_found_go_by_value(tmp_path: Path) -> None:
    """Such as those of a job's file, which is imported under another name."""
    file = tmp_path / "some_job.py"
    file.write_text("OFFSET = 3\n\ndef added(number):\n    return number + OFFSET\n")
    spec = importlib.util.spec_from_file_location("hidden_job", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hidden_job"] = module
    try:
        spec.loader.exec_module(module)
        assert sorted(run_tasks(module.added, [1, 2], processes=1)) == [(0, 4), (1, 5)]
    finally:
        del sys.modules["hidden_job"]
