"""`cordee.train` over several hosts, called on each of them: here two processes that meet on loopback."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from alone import Started
from cordee.core.errors import Interrupted, UsageError
from cordee.core.machine import listeners
from harness import DEADLINE_S, JOBS, Run, assert_same, free_port, start, train, until

CALL = """
import json, sys
import cordee
job, out, rendezvous, workers = sys.argv[1:]
if job == "made":
    import torch
    from torch import nn
    job = cordee.Job(
        model=lambda: nn.Linear(64, 10),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=cordee.data.digits(),
        batch=101,
    )
result = cordee.train(
    job, settings={"epochs": 2} if isinstance(job, str) else None, out=out, workers=int(workers), threads=1,
    rendezvous=rendezvous, nodes=2, deadline=100.0, progress=False,
)
print(json.dumps({"steps": result.values.get("steps")}))
"""


def called(job: str | Path, out: Path, workers: tuple[int, ...]) -> list[dict[str, Any]]:
    """What each host's call returned. All write to one folder, as on a shared file system."""
    meeting = f"127.0.0.1:{free_port()}"
    script = out.parent / "call.py"
    script.write_text(CALL)
    hosts = [Started(script, str(job), out, meeting, str(count)) for count in workers]
    ended = [host.end() for host in hosts]
    assert [one.returncode for one in ended] == [0, 0], ended
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]


def test_a_job_file_on_two_hosts(warm: int, tmp_path: Path) -> None:
    returned = called(JOBS / "mlp.py", tmp_path / "run", (1, 2))
    run = Run(tmp_path / "run")
    assert_same(run, train("mlp", tmp_path / "alone", epochs=2))
    assert run.result["workers"] == 3
    assert json.loads((run.out / "run.json").read_text())["nodes"] == 2
    nodes = [event["node"] for event in sorted(run.of("worker"), key=lambda event: event["worker"])]
    assert nodes in ([0, 1, 1], [0, 0, 1])  # by which of them came first, and so coordinates
    assert sorted(one["steps"] or 0 for one in returned) == [0, run.result["steps"]]  # one host has the result


def test_a_job_that_each_host_made_itself(warm: int, tmp_path: Path) -> None:
    called("made", tmp_path / "run", (1, 1))
    assert Run(tmp_path / "run").result["workers"] == 2


def test_the_launcher_of_a_host_is_killed(warm: int, tmp_path: Path) -> None:
    """Its workers end with it; those of the other host, which coordinates, go on."""
    struck = tmp_path / "struck"
    words = ["train", JOBS / "steady.py", "--workers", "2", "--threads", "1", "--set", f"awaits={struck}"]
    words += ["--rendezvous", f"127.0.0.1:{free_port()}", "--nodes", "2", "--out"]
    hosts = {out: start(*words, out) for out in (tmp_path / "one", tmp_path / "two")}

    def trained(out: Path) -> bool:
        return (out / "events.jsonl").exists() and len(Run(out).of("step")) >= 5

    try:
        until(lambda: any(map(trained, hosts)) or any(host.poll() is not None for host in hosts.values()))
        first, second = sorted(hosts, key=trained, reverse=True)
        hosts[second].kill()
        struck.touch()
        _, said = hosts[first].communicate(timeout=DEADLINE_S)
    finally:
        for host in hosts.values():
            host.kill()
            host.communicate(timeout=DEADLINE_S)
    assert hosts[first].returncode == 0, said
    run = Run(first)
    assert_same(run, train("steady", tmp_path / "alone"))
    assert (run.result["workers"], run.result["failures"]) == (4, 2)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("struck", [(1,), (0,), (0, 1), (1, 0)], ids=str)
def test_a_signal_on_any_host_stops_the_run_in_good_order(
    struck: tuple[int, ...], number: signal.Signals, warm: int, tmp_path: Path
) -> None:
    """With a checkpoint of the last step, from which it goes on; also where a scheduler sends it to every host.

    The run is stopped then, on all hosts: so says the exit code of each.
    """
    out, awaited = tmp_path / "run", tmp_path / "struck"
    words = ["train", JOBS / "steady.py", "--workers", "1", "--threads", "1", "--set", f"awaits={awaited}", "--out"]
    there = ["--rendezvous", f"127.0.0.1:{(port := free_port())}", "--nodes", "2"]
    hosts = [start(*words, out, *there)]
    until(lambda: listeners(port) or hosts[0].poll() is not None)
    hosts.append(start(*words, tmp_path / "other", *there))
    try:
        until(lambda: (out / "events.jsonl").exists() and len(Run(out).of("step")) >= 5)
        for place in struck:
            hosts[place].send_signal(number)
            until(lambda: any("stopping" in one["message"] for one in Run(out).of("warning")))
        awaited.touch()
        said = [host.communicate(timeout=DEADLINE_S)[1] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.communicate(timeout=DEADLINE_S)
    assert [host.returncode for host in hosts] == [Interrupted.code] * 2, said
    steps = Run(out).of("step")
    assert steps[-1]["step"] <= 26 and not Run(out).of("failure")
    assert f"stopped with a checkpoint; to go on after step {steps[-1]['step']}: " in said[0]
    assert "the run was ended: stopped after a step" in said[1].splitlines()[-1]
    run = train("steady", out, workers=1, resume=True, awaits=awaited)
    assert_same(run, train("steady", tmp_path / "alone"))


def test_a_worker_that_is_lost_on_another_host_is_replaced_there(warm: int, tmp_path: Path) -> None:
    """The coordinator starts it through the launcher of that host."""
    words = ["train", JOBS / "replaced.py", "--out", tmp_path / "run", "--workers", "1", "--threads", "1", "--replace"]
    words += ["--rendezvous", f"127.0.0.1:{free_port()}", "--nodes", "2", "--set", f"starts={tmp_path / 'starts'}"]
    words += ["--set", "fates=1:6:SIGKILL", "--set", "waits=9"]
    hosts = [start(*words) for _ in range(2)]
    said = [host.communicate(timeout=DEADLINE_S) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    run = Run(tmp_path / "run")
    assert [(event["worker"], event["replaces"]) for event in run.of("joined")] == [(2, 1)]
    assert {event["worker"]: event["node"] for event in run.of("worker")} == {0: 0, 1: 1, 2: 1}
    assert_same(run, train("replaced", tmp_path / "alone", starts=tmp_path / "other_starts"))


def storing(tmp_path: Path, workers: dict[str, int], job: str, *more: str | Path) -> dict[str, subprocess.Popen[str]]:
    """The same command on hosts with so many workers each; the first of them coordinates."""
    words = ["train", JOBS / f"{job}.py", "--threads", "1", "--plan", "sync=server,servers=2"]
    words += ["--rendezvous", f"127.0.0.1:{(port := free_port())}", "--nodes", str(len(workers)), *more]
    hosts = {}
    for name, count in workers.items():
        hosts[name] = start(*words, "--workers", str(count), "--out", tmp_path / name)
        until(lambda: listeners(port) or any(host.poll() is not None for host in hosts.values()))
    return hosts


def test_a_host_that_only_stores_is_lost(warm: int, tmp_path: Path) -> None:
    """It holds both shards; the backups on the other hosts take over, with nothing lost."""
    struck = tmp_path / "struck"
    hosts = storing(tmp_path, {"one": 1, "two": 1, "three": 0}, "steady", "--set", f"awaits={struck}")
    run = Run(tmp_path / "one")
    try:
        until(lambda: (run.out / "events.jsonl").exists() and len(Run(run.out).of("step")) >= 5)
        hosts["three"].kill()
        until(lambda: sum(event["what"] == "lost" for event in Run(run.out).of("server")) == 2)
        struck.touch()
        said = {name: host.communicate(timeout=DEADLINE_S) for name, host in hosts.items()}
    finally:
        for host in hosts.values():
            host.kill()
            host.communicate(timeout=DEADLINE_S)
    assert (hosts["one"].returncode, hosts["two"].returncode) == (0, 0), said
    assert_same(run, train("steady", tmp_path / "alone"))
    assert (run.result["workers"], run.result["failures"]) == (2, 2), "no worker was lost"
    assert all("left" in event["reason"] for event in run.of("server") if event["what"] == "lost")


@pytest.mark.parametrize(
    ("workers", "more", "words"),
    [
        ({"one": 0}, (), "this one is alone"),
        ({"one": 0, "two": 0}, (), "all 2 hosts were started with --workers 0"),
        ({"one": 0}, ("--nodes", "2", "--plan", "sync=local"), "under sync=local the workers hold them"),
    ],
)
def test_hosts_without_workers_that_are_refused(
    workers: dict[str, int], more: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    hosts = storing(tmp_path, workers, "mlp", *more)
    said = [host.communicate(timeout=DEADLINE_S)[1] for host in hosts.values()]
    assert hosts["one"].returncode == UsageError.code and words in said[0], said
