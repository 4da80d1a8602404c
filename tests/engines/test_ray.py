"""Runs on a real cluster of Ray, whose nodes are hosts of a twin: never outside of its networks."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.clusters import Nodes, ray_cluster, skip_without
from engines.gates import LONG_S, Gates
from harness import DEADLINE_S, Run, assert_same, command, job_file, train, until

FREE = """
import json, ray
ray.init(logging_level="ERROR")
groups = [one["state"] for one in ray.util.placement_group_table().values()]
print(json.dumps([ray.cluster_resources().get("CPU"), ray.available_resources().get("CPU"), groups]))
"""
OURS = (b"cordee.runtime.engines.agent", b"cordee.runtime.engines.forkserver")


@pytest.fixture
def one_node() -> Iterator[Nodes]:
    """A cluster of one node with two cores."""
    skip_without("ray")
    with ray_cluster([2]) as nodes:
        yield nodes


pytestmark = pytest.mark.timeout(900)


def asked(job: str | Path, workers: int, *more: str | Path) -> list[str | Path]:
    return [
        *("train", job_file(job), "--engine", "ray", "--workers", str(workers), "--threads", "1"),
        *("--trusted-network", *more),
    ]


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """What a command has said, once it has ended with this exit code."""
    said = process.communicate(timeout=LONG_S)
    assert process.returncode == code, said
    return said


def left(nodes: Nodes) -> list[object]:
    """What is not free on the cluster, and which processes of ours are in its places."""
    found = subprocess.run(
        nodes.twin.command("a", [sys.executable, "-c", FREE]),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
        env={**os.environ, **nodes.environment},
    )
    there, free, groups = json.loads(found.stdout.splitlines()[-1])
    ours = []
    for name in nodes.twin.cluster.names:
        for pid in nodes.twin.processes(name):
            words = Path(f"/proc/{pid}/cmdline")
            if words.exists() and any(one in words.read_bytes() for one in OURS):
                ours.append(pid)
    return [*([there - free] if there != free else []), *(one for one in groups if one != "REMOVED"), *ours]


def test_a_run_on_ray_is_the_same(one_node: Nodes, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said, _ = ended(one_node.cordee(*asked("changing", 2, "--out", out)))
    assert f"run: {out}" in said
    assert_same(Run(out), train("changing", tmp_path / "alone"))
    assert [one["host"] for one in Run(out).of("worker")] == ["a", "a"]
    until(lambda: left(one_node) == [])


@pytest.mark.engines
def test_a_worker_and_a_node_are_killed(tmp_path: Path) -> None:
    """The others go on, the coordinator replaces the worker, and Ray gives another node for the lost one."""
    skip_without("ray")
    with ray_cluster([1, 1, 1, 1]) as nodes:
        out = tmp_path / "run"

        def kill_worker() -> str:
            os.kill(gates.pid(1), signal.SIGKILL)
            return ""

        def kill_node() -> str:
            host = next(one["host"] for one in Run(out).of("worker") if one["worker"] == 2)
            nodes.twin.end_processes(host)
            return ""

        gates = Gates(tmp_path, at_6=kill_worker, at_20=kill_node)
        run = nodes.cordee(*asked("changing", 3, "--out", out, "--replace", *gates.words))
        ended(run)
        gates.end()
        found = Run(out)
        assert_same(found, train("changing", tmp_path / "alone"))
        assert [one["replaces"] for one in found.of("joined")] == [1, None]
        assert [one["worker"] for one in found.of("failure")] == [1, 2]
        until(lambda: left(nodes) == [])


@pytest.mark.engines
def test_ctrl_c_leaves_a_checkpoint_and_no_place(tmp_path: Path) -> None:
    skip_without("ray")
    with ray_cluster([1, 1]) as nodes:
        out = tmp_path / "run"

        def interrupt() -> str:
            run.send_signal(signal.SIGINT)
            until(lambda: any("stopping" in one["message"] for one in Run(out).of("warning")))
            return "go"

        gates = Gates(tmp_path, at_6=interrupt)
        run = nodes.cordee(*asked("changing", 2, "--out", out, *gates.words))
        _, said = ended(run, 130)
        assert "to go on after step" in said and "--engine ray" in said
        until(lambda: left(nodes) == [])
        again = nodes.cordee(*asked("changing", 2, "--out", out, "--resume"))
        ended(again)
        assert_same(Run(out), train("changing", tmp_path / "alone"))


@pytest.mark.engines
def test_mistakes_on_a_cluster(tmp_path: Path) -> None:
    """Each gives one line, and leaves nothing behind."""
    skip_without("ray")
    with ray_cluster([1]) as nodes:

        def refused(number: int, workers: int, *more: str) -> str:
            out = tmp_path / f"run-{number}"
            _, said = ended(nodes.cordee(*asked("changing", workers, "--out", out, *more)), number)
            assert said.rstrip().splitlines()[-1].startswith("cordee: ")
            assert not out.exists() or {one.name for one in out.iterdir()} <= {"events.jsonl"}
            until(lambda: left(nodes) == [])
            return said

        few = refused(30, 2, "--engine-set", "wait=5")
        assert "Ray has no 2 places for this run within 5 s: CPU 2 asked, 1 free. Take fewer workers" in few
        away = refused(30, 1, "--engine-set", "address=10.213.77.1:6380")
        assert "no Ray cluster was reached at 10.213.77.1:6380" in away


@pytest.mark.engines
def test_nodes_see_neither_the_folder_nor_the_job_file(tmp_path: Path) -> None:
    """Both are on a disk that only the command has; the job's file is sent, checkpoints and the model come back."""
    skip_without("ray")
    with ray_cluster([1, 1]) as nodes:
        disk = tmp_path / "disk"
        disk.mkdir()
        steps = [
            f"mount -t tmpfs none {disk}",
            f"cp {job_file('changing')} {disk}/job.py",
            f"cd {disk}",
            shlex.join([sys.executable, "-m", "cordee", *map(str, asked(disk / "job.py", 2, "--out", disk / "run"))]),
            f"cp -r {disk}/run {tmp_path}/run",
        ]
        ended(nodes.start_within("a", "unshare", "--mount", "sh", "-c", " && ".join(steps)))
        assert_same(Run(tmp_path / "run"), train("changing", tmp_path / "alone"))
        assert list((tmp_path / "run" / "checkpoints").iterdir()) and not list((tmp_path / "run").glob(".*"))
        until(lambda: left(nodes) == [])


@pytest.mark.engines
def test_a_command_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    skip_without("ray")
    with ray_cluster([1, 1]) as nodes:

        def kill() -> str:
            run.kill()
            return "go"

        gates = Gates(tmp_path, at_6=kill)
        run = nodes.cordee(*asked("changing", 2, "--out", tmp_path / "run", *gates.words))
        run.communicate(timeout=LONG_S)
        until(lambda: left(nodes) == [])


@pytest.mark.engines
def test_another_torch_on_a_node(tmp_path: Path) -> None:
    skip_without("ray")
    other = tmp_path / "other" / "torch-1.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    with ray_cluster([1], b={"PYTHONPATH": str(other.parent)}) as nodes:
        _, said = ended(nodes.cordee(*asked("changing", 2, "--out", tmp_path / "run")), 1)
        assert "host b has torch 1.0 instead of" in said and "install the same versions on all hosts" in said
        until(lambda: left(nodes) == [])


@pytest.mark.parametrize(
    ("variables", "words", "message"),
    [
        (
            {"PYTHONPATH": "{}"},
            (),
            '--engine ray needs Ray, which cannot be imported here (no ray): pip install "cordee',
        ),
        ({}, ("--engine-set", "cpu=2"), "engine ray has no setting cpu. Did you mean cpus?"),
    ],
)
def test_mistakes_before_a_cluster(
    tmp_path: Path, variables: dict[str, str], words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('no ray')\n")
    environment = {**os.environ, **{name: value.format(tmp_path) for name, value in variables.items()}}
    done = command(*asked("changing", 1, "--out", tmp_path / "run", *words), env=environment)
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "run").exists()
