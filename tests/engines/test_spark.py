"""Runs on Spark: its own processes on this machine, and a standalone cluster on hosts of a twin."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from engines.clusters import Nodes, skip_without, spark_cluster
from engines.gates import LONG_S, Gates
from harness import Run, assert_same, descendants, job_file, start, train, until

LOOPBACK = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
"""Spark's own processes listen where this says."""
WITHIN = ("--engine-set", "address=local[2]", "--engine-set", "conf=spark.ui.enabled=false")
"""Two tasks at a time in the process of Spark's driver: starts in a third of the time."""
HERE = ("--engine-set", "address=local-cluster[2,1,1024]", "--engine-set", "conf=spark.ui.enabled=false")

pytestmark = pytest.mark.timeout(900)


def asked(job: str, workers: int, *more: str | Path) -> list[str | Path]:
    return ["train", job_file(job), "--engine", "spark", "--workers", str(workers), "--threads", "1", *more]


@pytest.mark.parametrize("where", [WITHIN, pytest.param(HERE, marks=pytest.mark.engines)], ids=["local", "cluster"])
def test_a_run_on_spark_is_the_same(tmp_path: Path, where: tuple[str, ...]) -> None:
    skip_without("pyspark", twin=False)
    out = tmp_path / "run"
    run = start(*asked("changing", 2, "--out", out, *where), env=LOOPBACK, cwd=tmp_path)
    said, errors = run.communicate(timeout=LONG_S)
    assert run.returncode == 0, errors
    assert f"run: {out}" in said
    assert_same(Run(out), train("changing", tmp_path / "alone"))


@pytest.mark.engines
def test_ctrl_c_leaves_a_checkpoint_and_no_process(tmp_path: Path) -> None:
    skip_without("pyspark", twin=False)
    out = tmp_path / "run"

    def interrupt() -> str:
        run.send_signal(signal.SIGINT)
        until(lambda: any("stopping" in one["message"] for one in Run(out).of("warning")))
        return "go"

    gates = Gates(tmp_path, at_6=interrupt)
    run = start(*asked("changing", 2, "--out", out, *HERE, *gates.words), env=LOOPBACK, cwd=tmp_path)
    until(lambda: run.poll() is not None or (tmp_path / "gate-6.here").exists(), LONG_S)
    before = descendants(run.pid)
    _, said = run.communicate(timeout=LONG_S)
    assert run.returncode == 130, said
    assert "to go on after step" in said and "--engine spark" in said
    until(lambda: not any(one.alive for one in before))


@pytest.mark.engines
def test_a_worker_and_a_node_are_killed(tmp_path: Path) -> None:
    """The others go on, the coordinator replaces the worker, and Spark tries the task again on another node."""
    skip_without("pyspark")
    with spark_cluster([1, 1, 1, 1]) as nodes:
        out = tmp_path / "run"

        def kill_worker() -> str:
            os.kill(gates.pid(1), signal.SIGKILL)
            return ""

        def kill_node() -> str:
            host = next(one["host"] for one in Run(out).of("worker") if one["worker"] == 2)
            nodes.twin.end_processes(host)
            return ""

        gates = Gates(tmp_path, at_6=kill_worker, at_20=kill_node)
        conf = "conf=spark.executor.memory=1g;spark.task.cpus=1"
        more = ("--trusted-network", "--replace", "--engine-set", f"address={nodes.address}", "--engine-set", conf)
        run = nodes.cordee(*asked("changing", 3, "--out", out, *more, *gates.words))
        said = run.communicate(timeout=LONG_S)
        assert run.returncode == 0, said
        gates.end()
        found = Run(out)
        assert_same(found, train("changing", tmp_path / "alone"))
        assert [one["replaces"] for one in found.of("joined")] == [1, None]
        assert [one["worker"] for one in found.of("failure")] == [1, 2]
        until(lambda: executors(nodes) == [])


def executors(nodes: Nodes) -> list[int]:
    """What an application has left on the nodes: executors, and processes in places."""
    found = []
    for name in nodes.twin.cluster.names:
        for pid in nodes.twin.processes(name):
            words = Path(f"/proc/{pid}/cmdline")
            said = words.read_bytes() if words.exists() else b""
            found += [pid] * any(one in said for one in (b"ExecutorBackend", b"pyspark.daemon", b"engines.agent"))
    return found


@pytest.mark.engines
@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        ((), {}, "--engine spark needs a cluster: --engine-set address="),
        (("--engine-set", "adress=local[2]"), {}, "no setting adress. Did you mean address?"),
        (("--engine-set", "address=spark://127.0.0.1:1"), {}, "no master of Spark was reached at spark://127.0.0.1:1"),
        (("--engine-set", "address=spork"), {}, "no Spark application could be started at spork: "),
        (("--engine-set", "conf=x"), {}, "setting conf was given 'x'; expected name=value"),
        (HERE, {"JAVA_HOME": "/nowhere"}, "needs Java, and JAVA_HOME=/nowhere has none"),
        (HERE, {"PATH": "/nowhere", "JAVA_HOME": ""}, "needs Java 17 or newer"),
        ((*HERE, "--engine-set", "wait=30"), {}, "Spark had no slot for the others. Take fewer workers than 3"),
    ],
)
def test_mistakes(tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], message: str) -> None:
    skip_without("pyspark", twin=False)
    out = tmp_path / "run"
    run = start(*asked("changing", 3, "--out", out, *words), env={**LOOPBACK, **variables}, cwd=tmp_path)
    _, said = run.communicate(timeout=LONG_S)
    assert message in said and run.returncode in (2, 30), said
    assert said.rstrip().splitlines()[-1].startswith("cordee: ")
    assert not out.exists() or {one.name for one in out.iterdir()} <= {"events.jsonl"}  # what was said of the start
