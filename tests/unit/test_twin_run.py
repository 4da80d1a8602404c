"""What `cordee twin run` starts on each host, what it sees of the run, and what it does to mere processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.core.errors import UsageError
from cordee.core.eventlog import EventLog
from cordee.core.interpreter import python_module
from cordee.twin import enter
from cordee.twin.cluster import Cluster
from cordee.twin.commands import RunRequest, commands, threads_of
from cordee.twin.enter import MARK
from cordee.twin.faults import Faults
from cordee.twin.follow import RunFollower, follow_run
from cordee.twin.registry import Registry
from cordee.twin.run import check_possible, collect_files
from cordee.twin.schedule import Action, Schedule
from cordee.twin.twin import Twin
from harness import DEADLINE_S, stat_of, until
from records import T0, event, read, start, step, worker, write

JOB = RunRequest("train", Path("job.py"), Path("out"))


def twin_of(text: str, folder: Path, *, namespaces: bool = True) -> Twin:
    """On record, and nothing else."""
    registry = Registry(folder / "twins")
    with registry.locked():
        return Twin(registry.add("t", Cluster.parse(text), stays=True, namespaces=namespaces), registry)


@contextlib.contextmanager
def sleeping(twin: Twin, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process on a host, and one that it started."""
    script = "import subprocess; print('here', flush=True); subprocess.run(['sleep', '1000'])"
    command = twin.command(host, [sys.executable, "-c", script])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"here\n"
            until(lambda: len(twin.processes(host)) == 2)
            yield process
        finally:
            twin.end_processes(host)


# ------------------------------------------------------------- what is typed on each host


def typed(twin: Twin, asked: RunRequest) -> dict[str, str]:
    """On each host, behind what makes a process one of the host's."""
    python = " ".join([*python_module("cordee"), ""])
    return {host: " ".join(words).partition(f"-- {python}")[2] for host, words in commands(twin, asked).items()}


def test_the_same_command_on_every_host(tmp_path: Path) -> None:
    twin = twin_of("cpu=1, 2 x cpu=3.5 workers=2", tmp_path)
    folder = tmp_path / "twins" / "t"
    meeting = f"--rendezvous a:29400 --nodes 3 --token-file {folder}/token --trusted-network"
    asked = RunRequest("train", Path("job.py"), Path("out"), ("--set", "epochs=3"))
    assert typed(twin, asked) == {
        "a": f"train --workers 1 --out out --threads 1 {meeting} --set epochs=3 job.py",
        "b": f"train --workers 2 --out {folder}/out-b --threads 1 {meeting} --set epochs=3 job.py",
        "c": f"train --workers 2 --out {folder}/out-c --threads 1 {meeting} --set epochs=3 job.py",
    }


def test_the_words_behind_a_script_are_its_own(tmp_path: Path) -> None:
    twin = twin_of("2", tmp_path)
    said = typed(twin, RunRequest("run", Path("loop.py"), Path("out"), ("--depth", "3", "--threads", "2"), 1234))
    assert said["a"].startswith("run --workers 1 --out out --rendezvous a:1234 --nodes 2")
    assert said["a"].endswith(" --trusted-network loop.py --depth 3 --threads 2")


def test_one_host_alone_has_nobody_to_meet(tmp_path: Path) -> None:
    said = typed(twin_of("cpu=2 workers=2", tmp_path), JOB)
    assert said == {"a": "train --workers 2 --out out --threads 1 job.py"}


def test_threads_are_those_that_the_user_asks_for(tmp_path: Path) -> None:
    said = typed(twin_of("cpu=8", tmp_path), RunRequest("train", Path("job.py"), Path("out"), ("--threads", "3")))
    assert said == {"a": "train --workers 1 --out out --threads 3 job.py"}


def test_mere_processes_meet_on_loopback(tmp_path: Path) -> None:
    said = typed(twin_of("2", tmp_path, namespaces=False), JOB)
    assert all("--rendezvous 127.0.0.1:29400" in words for words in said.values())


def test_a_command_enters_its_host_first(tmp_path: Path) -> None:
    twin = twin_of("2", tmp_path)
    hosts = str(tmp_path / "twins" / "t" / "hosts")
    entering = [sys.executable, "-I", enter.__file__, "/run/netns/cordee-t-b", "b", hosts, ""]
    assert twin.command("b", ["ls", "-l"]) == [*entering, f"--tied={os.getpid()}", "--", "ls", "-l"]
    assert twin.command("b", ["ls"], tied=False) == [*entering, "--", "ls"]
    with pytest.raises(UsageError, match="there is no host 'z'; the hosts are a, b"):
        twin.command("z", ["ls"])


def test_a_worker_computes_with_its_part_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    cluster = Cluster.parse("cpu=0.25, cpu=5 workers=2, workers=4, 1")
    assert [threads_of(cluster, name) for name in cluster.names] == [1, 2, 2, 2]
    assert threads_of(Cluster.parse("1"), "a") == 16
    assert threads_of(Cluster.parse("32"), "b") == 1


# ------------------------------------------------------------- what is seen of a run


def test_what_is_seen_grows_with_the_file(tmp_path: Path) -> None:
    seen = RunFollower(tmp_path)
    seen.look()
    assert (seen.step, seen.workers, seen.began, seen.met) == (0, {}, None, False)
    assert (seen.progress().step, seen.progress().seconds) == (0, 0.0)
    write(tmp_path, start(0.0, 2))
    seen.look()
    assert seen.workers == {0: ("here", 100), 1: ("here", 101)}
    assert (seen.step, seen.began, seen.met) == (0, T0 + 1.0, True)
    write(tmp_path, [step(2.0, 1), step(2.1, 2), worker(2.2, 2, "far")])
    seen.look()
    assert (seen.step, seen.progress().step, seen.began) == (2, 2, T0 + 1.0)
    assert seen.workers[2] == ("far", 102)
    write(tmp_path, [event("failure", 2.3, worker=1, host="here", reason="gone", left=2)])
    seen.look()
    assert sorted(seen.workers) == [0, 2]


def test_a_line_that_is_still_being_written_waits(tmp_path: Path) -> None:
    seen = RunFollower(tmp_path)
    write(tmp_path, start(0.0, 1))
    line = json.dumps(step(2.0, 7)).encode() + b"\n"
    for number, byte in enumerate(line):
        with (tmp_path / "events.jsonl").open("ab") as file:
            file.write(bytes([byte]))
        seen.look()
        assert seen.step == (7 if number == len(line) - 1 else 0)


def test_a_resumed_run_begins_where_it_stopped(tmp_path: Path) -> None:
    write(tmp_path, [*start(0.0, 3), *(step(2.0, number) for number in range(1, 21))])
    seen = RunFollower(tmp_path)
    seen.skip()
    seen.look()
    assert (seen.step, seen.first, seen.workers) == (0, 0, {})
    write(tmp_path, start(9.0, 2, resume=True, steps=20))
    seen.look()
    assert (seen.step, seen.first, seen.began) == (20, 20, T0 + 10.0)
    assert sorted(seen.workers) == [0, 1], "the third one belonged to the former start"
    write(tmp_path, [step(12.0, 21)])
    seen.look()
    assert (seen.step, seen.first) == (21, 20)


def test_a_torn_line_of_the_former_start_is_cut_off_by_the_next(tmp_path: Path) -> None:
    write(tmp_path, [*start(0.0, 1), step(2.0, 1)])
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(json.dumps(step(2.1, 2)).encode()[:-20])
    seen = RunFollower(tmp_path)
    seen.skip()
    EventLog(tmp_path / "events.jsonl").close()
    write(tmp_path, [*start(9.0, 1, resume=True, steps=1), step(12.0, 2)])
    seen.look()
    assert (seen.step, sorted(seen.workers)) == (2, [0])


@pytest.mark.parametrize("steps", [0, 40])
def test_a_start_that_came_to_nothing_is_replaced(steps: int, tmp_path: Path) -> None:
    """The new file may be shorter than the former one, or longer by the time of the first look."""
    write(tmp_path, [*start(0.0, 2), *(step(2.0, number) for number in range(1, 6))])
    seen = RunFollower(tmp_path)
    seen.skip()
    (tmp_path / "events.jsonl").unlink()
    seen.look()
    write(tmp_path, [*start(9.0, 1), *(step(12.0, number) for number in range(1, steps + 1))])
    seen.look()
    assert (seen.step, sorted(seen.workers)) == (steps, [0])
    write(tmp_path, [step(13.0, steps + 1)])
    seen.look()
    assert seen.step == steps + 1


def test_the_run_that_a_twin_runs_is_known(tmp_path: Path) -> None:
    twin = twin_of("1", tmp_path)
    with pytest.raises(
        UsageError, match="no run was started on twin t by `cordee twin run`: name it with --run FOLDER"
    ):
        follow_run(twin)
    write(tmp_path / "out", [*start(0.0, 1), step(2.0, 3)])
    assert follow_run(twin, tmp_path / "out").step == 3
    (twin.entry.folder / "run").write_text(str(tmp_path / "out"))
    assert follow_run(twin).step == 3


# ------------------------------------------------------------- schedules that cannot be followed


def test_a_schedule_is_held_against_the_cluster() -> None:
    cluster = Cluster.parse("2")
    Schedule.parse("at step 3: cut b and kill worker 1").check(cluster)
    with pytest.raises(UsageError, match="schedule, 'at step 3: cut c': there is no host 'c'"):
        Schedule.parse("at step 3: cut b\nat step 3: cut c").check(cluster)
    with pytest.raises(UsageError, match="there is no worker 2: expected one from 0 to 1"):
        Schedule.parse("at step 3: kill worker 2").check(cluster)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("at step 3: kill worker 1 and cut b", "'at step 3: kill worker 1 and cut b'"),
        ("\nat step 3: mend b", "'at step 3: mend b'"),
        ("at step 3: set b link=1mbit", "'at step 3: set b link=1mbit'"),
    ],
)
def test_mere_processes_have_no_links(text: str, where: str, tmp_path: Path) -> None:
    schedule = Schedule.parse(text)
    check_possible(schedule, twin_of("2", tmp_path / "with"))
    with pytest.raises(UsageError, match=f"schedule, {where}: the hosts of twin t are mere processes, without links"):
        check_possible(schedule, twin_of("2", tmp_path / "without", namespaces=False))
    check_possible(Schedule.parse("at step 3: kill host b"), twin_of("2", tmp_path / "other", namespaces=False))


# ------------------------------------------------------------- mere processes


def test_processes_are_found_by_their_host(processes: Twin) -> None:
    with sleeping(processes, "a") as one, sleeping(processes, "b") as two:
        assert one.pid in processes.processes("a") and two.pid in processes.processes("b")
        assert set(processes.processes("a")).isdisjoint(processes.processes("b"))
        processes.end_processes("a")
        assert processes.processes("a") == [] and len(processes.processes("b")) == 2
        processes.down()
        assert processes.processes("b") == []
        assert two.wait(DEADLINE_S) == -9


def test_faults_reach_mere_processes_and_are_on_record(processes: Twin, tmp_path: Path) -> None:
    out, said = tmp_path / "out", list[str]()
    with sleeping(processes, "a") as one, sleeping(processes, "b") as two:
        write(out, start(0.0, 0))
        for number, process in ((0, one), (1, two), (2, one)):
            place = {"device": "cpu", "threads": 1, "cores": 2, "node": 0}
            write(out, [event("worker", 1.0, worker=number, host="machine", pid=process.pid + (number == 2), **place)])
        seen = RunFollower(out)
        seen.look()
        seen.workers[2] = ("machine", os.getpid())  # a number that went to somebody else
        faults = Faults(processes, seen, 0, said.append)
        faults.do(Action("pause", worker=1))
        until(lambda: (stat_of(two.pid) or "?")[0] == "T")
        faults.do(Action("resume", worker=1))
        until(lambda: (stat_of(two.pid) or "?")[0] != "T")
        faults.do(Action("kill", worker=1))
        assert two.wait(DEADLINE_S) == -9
        faults.do(Action("kill", worker=2))
        faults.do(Action("kill", worker=5))
        assert faults.struck == {"b"}
        faults.do(Action("kill", "a"))
        assert one.wait(DEADLINE_S) == -9
    expected = [
        f"pause worker 1 (process {two.pid} on b)",
        f"resume worker 1 (process {two.pid} on b)",
        f"kill worker 1 (process {two.pid} on b)",
        f"kill worker 2: process {os.getpid()} is not there any more",
        "kill worker 5: it is not there any more",
        "kill host a",
    ]
    assert [one["what"] for one in read(out) if one["event"] == "fault"] == expected
    assert said == [f"step 0: {what}" for what in expected]


def test_random_workers_are_those_that_are_left(processes: Twin, tmp_path: Path) -> None:
    seen = RunFollower(write(tmp_path / "out", start(0.0, 0)))
    faults = Faults(processes, seen, 0, lambda message: None)
    faults.do(Action("kill"))
    with sleeping(processes, "b") as process:
        seen.workers[4] = ("b", process.pid)
        faults.do(Action("kill"))
        assert process.wait(DEADLINE_S) == -9
    what = [one["what"] for one in read(tmp_path / "out") if one["event"] == "fault"]
    assert what == ["kill random worker: there is none", f"kill worker 4 (process {process.pid} on b)"]


def test_what_mere_processes_do_not_have_is_refused(processes: Twin, tmp_path: Path) -> None:
    faults = Faults(processes, RunFollower(tmp_path), 0, lambda message: None)
    for action in (Action("cut", "b"), Action("set", "b", settings=(("link", "1mbit"),))):
        with pytest.raises(
            UsageError, match=f"no link can be changed: the hosts of twin {processes.name} are mere processes"
        ):
            faults.do(action)
    with pytest.raises(UsageError, match="there is no host 'z'"):
        processes.set("z", {"cpu": 0.5})
    registry = Registry(tmp_path / "twins")
    with pytest.raises(UsageError, match=r"host a cannot have a link: it is a mere process\. Leave link= out"):
        Twin.up(Cluster.parse("link=1mbit"), registry, processes=True)
    assert [one.name for one in registry.entries()] == [processes.name]


def test_a_warm_server_of_the_machine_is_not_the_hosts(processes: Twin, warm: int) -> None:
    """Its workers would be neither in the host's group nor found with the host's processes."""
    script = "from cordee.runtime.engines.warm import connect_warm; print(connect_warm() is not None)"
    here, there = (
        subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout
        for command in ([sys.executable, "-c", script], processes.command("b", [sys.executable, "-c", script]))
    )
    assert (here, there) == ("True\n", "False\n")


def test_a_host_ends_with_whoever_started_it(processes: Twin, tmp_path: Path) -> None:
    script = f"""
import subprocess
from pathlib import Path
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin
registry = Registry(Path({str(tmp_path / "twins")!r}))
subprocess.run(Twin(registry.find(None), registry).command("b", ["sleep", "1000"]))
"""
    starter = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: [b"sleep" in _words(pid) for pid in processes.processes("b")] == [True])
    finally:
        starter.kill()
        starter.wait(DEADLINE_S)
    until(lambda: processes.processes("b") == [])


def test_a_host_whose_starter_has_gone_does_not_begin(processes: Twin) -> None:
    between = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"]
    command = [*between, *processes.command("b", ["touch", str(processes.entry.folder / "begun")])]
    late = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (late.returncode, late.stderr) == (1, "the twin has ended already\n")
    assert not (processes.entry.folder / "begun").exists()


def _words(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_a_command_that_is_not_there(processes: Twin) -> None:
    done = subprocess.run(processes.command("a", ["no-such-program"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "no-such-program: No such file or directory\n")


def test_a_mere_host_knows_which_it_is(processes: Twin) -> None:
    done = subprocess.run(processes.command("a", ["printenv", MARK]), capture_output=True, text=True, check=True)
    assert done.stdout == f"{processes.entry.folder / 'a'}\n"


def test_what_other_hosts_wrote_is_brought_home(tmp_path: Path) -> None:
    out, far = tmp_path / "out", tmp_path / "far"
    for folder, number in ((out, 3), (far, 3), (far, 6)):
        made = folder / "checkpoints" / f"step-{number:08}"
        made.mkdir(parents=True)
        (made / "checkpoint.json").write_text(folder.name)
    for folder in (out, far):
        (folder / "model.safetensors").write_text(folder.name)
        (folder / "events.jsonl").write_text(folder.name)
    for path in (out / "model.safetensors", far / "checkpoints" / "step-00000003"):
        os.utime(path, (1, 1))
    assert collect_files([tmp_path / "never", far], out) == ["step-00000006", "model.safetensors"]
    assert [
        (out / "checkpoints" / name / "checkpoint.json").read_text() for name in ("step-00000003", "step-00000006")
    ] == [
        "out",
        "far",
    ]
    assert (out / "model.safetensors").read_text() == "far" and (out / "events.jsonl").read_text() == "out"
    assert collect_files([far], out) == []
