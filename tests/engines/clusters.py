"""Clusters of Ray and Spark on the hosts of a twin: real nodes, each in a network of its own, and none left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cordee.twin.cluster import Cluster
from cordee.twin.network import address_of
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin, missing
from harness import DEADLINE_S, until

BIN = Path(sys.executable).parent
RAY_PORT, SPARK_PORT = 6379, 7077


def skip_without(module: str) -> None:
    """Skip where no cluster of this kind can be: the package, Java, hosts of a twin."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install cordee[{module.removeprefix('py')}]")
    if module == "pyspark" and shutil.which("java") is None:
        pytest.skip("there is no Java here")
    if lacking := missing():
        pytest.skip(f"no twin can be made here: {'; '.join(lacking)}")


@dataclass
class Nodes:
    """Hosts of a twin, on which processes of a cluster run."""

    twin: Twin
    address: str
    """Of the cluster, as its users write it."""
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, host: str, *words: str | Path, log: str = "", **variables: str) -> subprocess.Popen[bytes]:
        """A command on a host, left running."""
        with (self.folder / (log or f"{host}.log")).open("ab") as output:
            process = subprocess.Popen(
                self.twin.command(host, [str(word) for word in words]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env={**os.environ, **self.environment, **variables},
            )
        self.started.append(process)
        return process

    def cordee(self, *words: str | Path, host: str = "a", **variables: str) -> subprocess.Popen[str]:
        """The `cordee` command on a host."""
        return subprocess.Popen(
            self.twin.command(host, [sys.executable, "-m", "cordee", *map(str, words)]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, **self.environment, **variables},
        )

    def said(self, name: str) -> str:
        """What is in a log."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""


@contextlib.contextmanager
def hosts(count: int, address: str) -> Iterator[Nodes]:
    """A twin of so many hosts; with them everything ends that was started there."""
    folder = Path(tempfile.mkdtemp(prefix="cde-"))  # short: Ray makes sockets below it
    cluster = Cluster.parse(f"{count} x")
    twin = Twin.up(cluster, Registry())
    nodes = Nodes(twin, address.format(address_of(cluster, "a")), folder)
    try:
        yield nodes
    finally:
        twin.down()
        for process in nodes.started:
            process.wait(DEADLINE_S)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def ray_cluster(cpus: Sequence[int]) -> Iterator[Nodes]:
    """A node on each host, with so many cores; the first one is the head."""
    with hosts(len(cpus), f"{{}}:{RAY_PORT}") as nodes:
        nodes.environment["RAY_ADDRESS"] = nodes.address
        nodes.environment["RAY_TMPDIR"] = str(nodes.folder)
        for name, count in zip(nodes.twin.cluster.names, cpus, strict=True):
            add_ray_node(nodes, name, count)
            if name == "a":
                until(lambda: "Ray runtime started" in nodes.said("a") or nodes.started[-1].poll() is not None)
        until(lambda: all("Ray runtime started" in nodes.said(name) for name in nodes.twin.cluster.names))
        yield nodes


def add_ray_node(nodes: Nodes, host: str, cpus: int) -> None:
    """Start one more node."""
    where = address_of(nodes.twin.cluster, host)
    role = (
        [f"--port={RAY_PORT}", "--head", f"--temp-dir={nodes.folder}"]
        if host == "a"
        else [f"--address={nodes.address}"]
    )
    more = ["--object-store-memory=100000000", "--disable-usage-stats", "--include-dashboard=false", "--block"]
    if host != "a":
        more.remove("--include-dashboard=false")
    nodes.start(host, BIN / "ray", "start", *role, f"--node-ip-address={where}", f"--num-cpus={cpus}", *more)


@contextlib.contextmanager
def spark_cluster(cores: Sequence[int]) -> Iterator[Nodes]:
    """A master on the first host, and on each of the others a worker with so many cores."""
    with hosts(len(cores) + 1, f"spark://{{}}:{SPARK_PORT}") as nodes:
        where = address_of(nodes.twin.cluster, "a")
        nodes.environment["SPARK_LOCAL_DIRS"] = nodes.environment["SPARK_WORKER_DIR"] = str(nodes.folder)
        nodes.environment["SPARK_LOCAL_IP"] = where
        master = ("org.apache.spark.deploy.master.Master", "--host", where, "--port", str(SPARK_PORT))
        nodes.start("a", BIN / "spark-class", *master, "--webui-port", "0")
        until(lambda: "New state: ALIVE" in nodes.said("a") or nodes.started[-1].poll() is not None)
        for name, count in zip(nodes.twin.cluster.names[1:], cores, strict=True):
            add_spark_worker(nodes, name, count)
        until(lambda: all("Successfully registered" in nodes.said(name) for name in nodes.twin.cluster.names[1:]))
        yield nodes


def add_spark_worker(nodes: Nodes, host: str, cores: int) -> None:
    """Start one more worker of Spark, the process that starts executors."""
    where = address_of(nodes.twin.cluster, host)
    words = ("--host", where, "--cores", str(cores), "--memory", "1g", "--webui-port", "0")
    nodes.start(
        host,
        BIN / "spark-class",
        *("org.apache.spark.deploy.worker.Worker", *words, nodes.address),
        SPARK_LOCAL_IP=where,
    )
