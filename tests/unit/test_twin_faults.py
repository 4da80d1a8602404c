"""Which faults a run suffers and which it does not, and whose processes end with it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cordee.core.errors import UsageError
from cordee.core.plan import Plan
from cordee.runtime.launch import Launch
from cordee.runtime.spec import Target
from cordee.runtime.wording import Wording
from cordee.twin.commands import HostProcesses, RunRequest, check_options, commands, occupied
from cordee.twin.faults import Faults
from cordee.twin.follow import RunFollower, follow_run
from cordee.twin.run import run
from cordee.twin.schedule import Action, Progress, Schedule
from cordee.twin.twin import Twin
from harness import DEADLINE_S, until
from records import event, read, start, step, worker, write, write_checkpoint

SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(1000)"]
OFFSPRING = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
away = subprocess.Popen([*sleep[:2], f"import subprocess; print(subprocess.Popen({sleep!r}).pid, flush=True)"],
                        start_new_session=True)
away.wait()
time.sleep(1000)
"""
"""Says the number of a process that has another session and whose parent has ended."""


@contextlib.contextmanager
def sleeping(twin: Twin, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process on a host."""
    with subprocess.Popen(twin.command(host, SLEEP), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"here\n"
            yield process
        finally:
            process.kill()


def faults_on_record(folder: Path) -> list[str]:
    return [one["what"] for one in read(folder) if one["event"] == "fault"]


# ------------------------------------------------------------- what is due


def test_a_resumed_run_does_not_suffer_what_is_long_past(tmp_path: Path) -> None:
    """Though where it begins and its first step were read in one look."""
    schedule = Schedule.parse("at step 3: cut b; every 10 steps: mend b; at step 21: kill host b")
    write(tmp_path, [*start(0.0, 2), *(step(2.0, number) for number in range(1, 21))])
    seen = RunFollower(tmp_path)
    seen.skip()
    assert seen.due(schedule, Progress()) == ([], Progress())
    write(tmp_path, [*start(9.0, 2, resume=True, steps=20), step(12.0, 21)])
    due, now = seen.due(schedule, Progress())
    assert ([str(action) for action in due], now.step) == (["kill host b"], 21)


def test_a_run_that_has_ended_suffers_nothing_more(tmp_path: Path) -> None:
    schedule = Schedule.parse("at step 3: cut b; at step 4: mend b")
    seen = RunFollower(write(tmp_path, [*start(0.0, 2), *(step(2.0, number) for number in range(1, 4))]))
    due, now = seen.due(schedule, Progress())
    assert [str(action) for action in due] == ["cut b"]
    write(tmp_path, [step(2.1, 4), event("end", 2.2, reason="completed", code=0, message="")])
    assert seen.due(schedule, now) == ([], now)
    assert (seen.ended, seen.workers) == (True, {})
    assert schedule.missed(0, now) == ["did not happen, the run ended before: at step 4: mend b"]


def test_what_never_came_is_named() -> None:
    schedule = Schedule.parse(
        "at step 3: cut b; at step 25: mend b; every 10 steps: kill worker 1\n"
        "at step 99999: cut b and kill host b; every 40 steps: mend b\n"
        "at 0 s: cut b; at 1 min: mend b; every 1 s: mend b"
    )
    assert schedule.missed(20, Progress(30, 2.5)) == [
        "did not happen, this start began after step 20: at step 3: cut b",
        "did not happen, the run ended before: at step 99999: cut b and kill host b",
        "did not happen, the run ended before: every 40 steps: mend b",
        "did not happen, the run ended before: at 60 s: mend b",
    ]
    assert Schedule.parse("at step 3: cut b").missed(0, Progress(3)) == []


# ------------------------------------------------------------- workers that are not there


def test_a_worker_that_ends_while_it_is_looked_for(
    processes: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, said = RunFollower(write(tmp_path / "out", start(0.0, 0))), list[str]()
    with sleeping(processes, "b") as process:
        seen.workers[1] = ("b", process.pid)

        def alive_until_asked(asked: psutil.Process) -> str:
            process.kill()
            process.wait(DEADLINE_S)
            return str(psutil.STATUS_SLEEPING)

        monkeypatch.setattr(psutil.Process, "status", alive_until_asked)
        Faults(processes, seen, 0, said.append).do(Action("kill", worker=1))
    expected = f"kill worker 1: process {process.pid} is not there any more"
    assert said == [f"step 0: {expected}"]
    assert faults_on_record(tmp_path / "out") == [expected]


def test_by_hand_only_what_is_there_is_signalled(processes: Twin, tmp_path: Path) -> None:
    out = write(tmp_path / "out", start(0.0, 0))
    with sleeping(processes, "b") as process:
        write(out, [{**worker(1.0, 1, "b"), "pid": process.pid}])
        faults = Faults(processes, follow_run(processes, out), 0, lambda message: None)
        with pytest.raises(
            UsageError, match=rf"pause worker 7: it is not there any more\. Workers of the run in {out}: 1"
        ):
            faults.by_hand(Action("pause", worker=7))
        faults.by_hand(Action("kill", worker=1))
        # Its parent has not asked for the exit code yet: there is still a process of this number, but no worker.
        until(lambda: "\nState:\tZ" in Path(f"/proc/{process.pid}/status").read_text())
        with pytest.raises(UsageError, match=f"kill worker 1: process {process.pid} is not there any more"):
            faults.by_hand(Action("kill", worker=1))
        process.wait(DEADLINE_S)
        with pytest.raises(UsageError, match=f"resume worker 1: process {process.pid} is not there any more"):
            faults.by_hand(Action("resume", worker=1))
    assert faults_on_record(out) == [f"kill worker 1 (process {process.pid} on b)"]
    write(out, [event("end", 2.0, reason="completed", code=0, message="")])
    with pytest.raises(UsageError, match=f"kill worker 1: the run in {out} has ended"):
        Faults(processes, follow_run(processes, out), 0, lambda message: None).by_hand(Action("kill", worker=1))
    with pytest.raises(UsageError, match=r"nowhere holds no run that has begun: there is no events\.jsonl in it"):
        follow_run(processes, tmp_path / "nowhere")


def test_the_workers_of_a_run_are_those_of_its_last_start(tmp_path: Path, processes: Twin) -> None:
    write(tmp_path, [*start(0.0, 3), step(2.0, 1), *start(9.0, 2, resume=True, steps=1)])
    assert sorted(follow_run(processes, tmp_path).workers) == [0, 1]


# ------------------------------------------------------------- whose processes


def test_one_run_at_a_time(processes: Twin, tmp_path: Path) -> None:
    with occupied(processes):
        refusal = pytest.raises(UsageError, match=rf"is in progress on twin {processes.name}: wait")
        with refusal, occupied(processes):
            raise AssertionError("two at once")
    with occupied(processes):
        pass


def test_a_second_run_touches_nothing(processes: Twin, tmp_path: Path) -> None:
    asked = RunRequest("train", Path("job.py"), tmp_path / "out")
    with sleeping(processes, "b") as other, occupied(processes):
        with pytest.raises(UsageError, match=r"a run \(.*\) is in progress on twin"):
            run(processes, asked, Schedule(), say=print)
        assert processes.processes("b") == [other.pid] and processes.processes("a") == []
        assert not (processes.entry.folder / "run").exists()


def test_a_run_ends_its_own_processes_and_no_others(processes: Twin) -> None:
    own = HostProcesses(processes.entry.folder)
    own.start("a", ["true"])
    with sleeping(processes, "b") as other:
        first = own.start("b", processes.command("b", [sys.executable, "-c", OFFSPRING]))
        log = processes.entry.folder / "b.log"
        until(lambda: log.read_text().endswith("\n"))
        away = int(log.read_text())
        assert {first.pid, away, other.pid} <= set(processes.processes("b"))
        own.end()
        assert first.wait(DEADLINE_S) == -9
        assert processes.processes("b") == [other.pid]


def test_what_python_ignores_is_not_ignored_by_the_command(processes: Twin) -> None:
    command = processes.command("a", ["grep", "SigIgn", "/proc/self/status"])
    ignored = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1], 16)
    assert ignored & (1 << 12 | 1 << 24) == 0, "SIGPIPE, SIGXFSZ"


# ------------------------------------------------------------- options, words


def test_what_the_twin_gives_itself_is_refused() -> None:
    check_options(["--set", "workers=2", "--threads", "2", "--resume"])
    for option in ("--workers", "--workers=2"):
        with pytest.raises(UsageError, match=r'--workers cannot be given here: .* --hosts "2 x workers=2"'):
            check_options(["--resume", option, "2"])
    with pytest.raises(UsageError, match="--rendezvous cannot be given here: the hosts of a twin find each other"):
        check_options(["--rendezvous", "a:1"])


def test_what_stands_behind_two_dashes_stays_there(processes: Twin) -> None:
    asked = RunRequest("run", Path("loop.py"), Path("out"), ("--threads", "1"), behind=("--workers", "3"))
    for words in commands(processes, asked).values():
        assert words[-6:] == ["loop.py", "--threads", "1", "--", "--workers", "3"]


def test_on_a_twin_the_hosts_do_not_say_how_to_go_on(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 7)
    said = [
        Launch(Target("job", "job.py"), 1, Plan(), tmp_path, wording=Wording(way_on=way_on)).going_on()
        for way_on in (True, False)
    ]
    assert said[0].startswith("to go on after step 7: cordee train job.py") and said[1] == ""
