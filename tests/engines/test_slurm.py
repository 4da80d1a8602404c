"""Runs on a real Slurm, whose two nodes are hosts of a twin: each has a network of its own."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.runtime.folder import saved_step
from engines.gates import Gates
from engines.slurm import NODES, Slurm, missing, slurm, words_of
from harness import JOBS, Run, assert_exact, assert_same, job_file, train, until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(480)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Both nodes."""
    if lacking := missing():
        pytest.skip(f"no Slurm here: {lacking}")
    with slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What one process trains."""
    return train("changing", tmp_path_factory.mktemp("alone"))


@pytest.fixture(autouse=True)
def idle(cluster: Slurm) -> Iterator[None]:
    """After each test nothing of ours runs on the cluster; lost nodes are started again."""
    yield
    for node in NODES:
        if node not in cluster.daemons:
            cluster.start_node(node)
    until(cluster.is_idle)
    until(lambda: cluster.processes() == [])


def asked(out: Path, *more: str | Path, **given: str) -> list[str | Path]:
    settings = {"nodes": "2", **given}
    words = [word for name, value in settings.items() for word in ("--engine-set", f"{name}={value}")]
    return [
        *(job_file("changing"), "--engine", "slurm", "--workers", "3", "--threads", "1", "--trusted-network"),
        *(*words, "--out", out, *more),
    ]


def said(out: Path, job: str) -> str:
    return (out / f"slurm-{job}.out").read_text()


def test_three_workers_on_two_nodes_train_the_same(cluster: Slurm, alone: Run, tmp_path: Path) -> None:
    out, words = tmp_path / "run", set[bytes]()

    def look() -> str:
        for pid in cluster.processes():
            words.update(words_of(pid))
        return "go"

    gates = Gates(tmp_path, at_4=look)
    job = cluster.submit(*asked(out, *gates.words))
    cluster.await_state(job, "COMPLETED")
    gates.end()
    assert_same(Run(out), alone)
    workers = Counter(one["host"] for one in Run(out).of("worker"))
    assert sorted(workers) == list(NODES) and sorted(workers.values()) == [1, 2]
    assert f"run: {out}" in said(out, job)
    # The run's token, 64 hexadecimal digits, is in no command, and Slurm keeps it in no file.
    token = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
    assert any(b"slurm.step" in one for one in words) and not [one for one in words if token.search(one)]
    assert not token.search((out / "slurm.sh").read_bytes() + (out / f"slurm-{job}.out").read_bytes())


def test_a_worker_and_a_node_are_killed(cluster: Slurm, alone: Run, tmp_path: Path) -> None:
    """Another worker comes in the place of one; a launcher is started again; a lost node's workers stay away."""
    out = tmp_path / "run"

    def kill_worker() -> str:
        os.kill(gates.pid(0), signal.SIGKILL)
        return "go"

    def kill_launcher() -> str:
        (pid,) = [pid for pid in cluster.processes("b") if b"cordee.runtime.engines.slurm.step" in words_of(pid)]
        os.kill(pid, signal.SIGKILL)
        return "go"

    def kill_node() -> str:
        cluster.kill_node("b")
        return "go"

    def all_here() -> str:
        return "3"

    gates = Gates(tmp_path, at_6=kill_worker, at_8=all_here, at_12=kill_launcher, at_14=all_here, at_20=kill_node)
    job = cluster.submit(*asked(out, "--replace", *gates.words))
    cluster.await_state(job, "COMPLETED")
    gates.end()
    assert_same(Run(out), alone)
    joined = [one["replaces"] for one in Run(out).of("joined")]
    assert joined[0] == 0 and set(joined[1:]) == {None}, joined


def test_the_node_of_the_batch_script_is_killed(cluster: Slurm, alone: Run, tmp_path: Path) -> None:
    """The coordinator is there: the others let the job begin anew, which goes on with the run on what is left."""
    out = tmp_path / "run"

    def kill_node() -> str:
        until(lambda: len(Run(out).of("step")) >= 15)  # what is not on record yet is lost with its host
        cluster.kill_node("a")
        return "go"

    gates = Gates(tmp_path, at_18=kill_node)
    job = cluster.submit(*asked(out, "--set", "save_steps=5", *gates.words))
    gates.end()  # the node is gone, and not only its first processes
    until(lambda: cluster.show(job)["Restarts"] == "1")
    cluster.start_node("a")
    cluster.await_state(job, "COMPLETED")
    assert_exact(Run(out), alone)


@pytest.mark.parametrize("how", ["notice", "preempted", "preempted at once"])
def test_a_job_that_is_requeued_goes_on_exactly(how: str, cluster: Slurm, alone: Run, tmp_path: Path) -> None:
    """Slurm's notice before the time limit, or another job that takes the nodes: with a grace time, or without one."""
    out = tmp_path / "run"

    def take_away() -> str:
        until(lambda: Run(out).of("step"))  # before that there is nothing to save
        if how == "notice":
            cluster.say("scancel", "--signal=USR1", "--batch", job)
        else:
            urgent = ("--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "true")
            cluster.say("sbatch", "--parsable", *urgent)
        until(lambda: any("stopping" in one["message"] for one in Run(out).of("warning")))
        return "go"

    gates = Gates(tmp_path, at_6=take_away)
    partition = "rude" if how == "preempted at once" else "low"
    job = cluster.submit(*asked(out, *gates.words, partition=partition))
    cluster.await_state(job, "COMPLETED")
    gates.end()
    assert cluster.show(job)["Restarts"] == "1"
    # Without a grace time Slurm puts it back by itself.
    assert (f"job {job} goes on after step" in said(out, job)) == (how != "preempted at once")
    assert_same(Run(out), alone)


def test_scancel_leaves_a_checkpoint_and_a_free_cluster(cluster: Slurm, alone: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def cancel() -> str:
        until(lambda: Run(out).of("step"))  # before that there is nothing to save
        cluster.say("scancel", job)
        until(lambda: any("stopping" in one["message"] for one in Run(out).of("warning")))
        return "go"

    gates = Gates(tmp_path, at_6=cancel)
    job = cluster.submit(*asked(out, *gates.words))
    cluster.await_state(job, "CANCELLED")
    gates.end()
    until(cluster.is_idle)
    assert saved_step(out) is not None and cluster.show(job)["Restarts"] == "0"
    again = cluster.submit(*asked(out, "--resume", nodes="1"))
    cluster.await_state(again, "COMPLETED")
    assert_same(Run(out), alone)


def test_ctrl_c_inside_an_allocation(cluster: Slurm, alone: Run, tmp_path: Path) -> None:
    """The command coordinates from where it was given, and gives the allocation back."""
    out = tmp_path / "run"

    def interrupt() -> str:
        until(lambda: Run(out).of("step"))  # before that there is nothing to save
        (pid,) = [pid for pid in cluster.processes("c") if words_of(pid)[2:3] == [b"train"]]
        os.kill(pid, signal.SIGINT)
        until(lambda: any("stopping" in one["message"] for one in Run(out).of("warning")))
        return "go"

    gates = Gates(tmp_path, at_6=interrupt)
    words = ("salloc", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "cordee", "train")
    run = cluster.run(*words, *asked(out, *gates.words))
    gates.end()
    assert run.returncode == 130 and "to go on after step" in run.stderr, run.stderr
    until(cluster.is_idle)
    resumed = train("changing", out, workers=2, resume=True)
    assert_same(resumed, alone)


def test_scaling_is_measured_over_the_nodes_of_a_job(cluster: Slurm, tmp_path: Path) -> None:
    """All numbers of workers in one allocation."""
    out = tmp_path / "scaling"
    words = (
        "bench",
        "scaling",
        JOBS / "mlp.py",
        "--workers",
        "1,2,3",
        "--rounds",
        "1",
        "--steps",
        "3",
        "--warm-up",
        "1",
    )
    asked = ("--engine", "slurm", "--engine-set", "nodes=2", "--trusted-network", "--out", out)
    lines = cluster.run("cordee", *words, *asked, "--dry-run").stdout.splitlines()
    assert {"#SBATCH --cpus-per-task=2", "#SBATCH --no-requeue"} <= set(lines)
    done = cluster.run("cordee", *words, *asked)
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[1]
    cluster.await_state(job, "COMPLETED")
    found = json.loads((out / "scaling.json").read_text())
    assert [one["workers"] for one in found["counts"]] == [1, 2, 3] and "speed-up" in said(out, job)
    assert [len(one["step_ms"]) for one in found["runs"]] == [3, 3, 3]


def test_mistakes_are_one_line_and_leave_nothing(cluster: Slurm, tmp_path: Path) -> None:
    for settings, word in (
        ({"partition": "nowhere"}, "Slurm does not take the job: invalid partition specified: nowhere"),
        ({"partitoin": "low"}, "engine slurm has no setting partitoin. Did you mean partition?"),
        ({"nodes": "5"}, "5 hosts, but --workers 3"),
    ):
        done = cluster.run("cordee", "train", *asked(tmp_path / "run", **settings))
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and word in done.stderr, done.stderr
        assert not (tmp_path / "run").exists()
    unsafe = [word for word in asked(tmp_path / "run") if word != "--trusted-network"]
    assert "--trusted-network" in cluster.run("cordee", "train", *unsafe).stderr
    assert not (tmp_path / "run").exists()
