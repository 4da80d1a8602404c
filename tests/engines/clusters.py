"""Clusters of Ray and Spark on the hosts of a twin: real nodes, each in a network of its own, and none left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import pytest

from cordee.twin.cluster import Cluster
from cordee.twin.network import address_of
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin, missing
from engines.gates import LONG_S
from harness import DEADLINE_S, until

BIN = Path(sys.executable).parent
RAY_PORT, SPARK_PORT = 6379, 7077


def skip_without(module: str, *, twin: bool = True) -> None:
    """Skip where no cluster of this kind can be: it needs a package, Java for Spark, and the hosts of a `twin`."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install cordee[{module.removeprefix('py')}]")
    if module == "pyspark" and shutil.which("java") is None:
        pytest.skip("there is no Java here")
    if lacking := missing() if twin else []:
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

    def start(self, host: str, *words: str | Path, **variables: str) -> subprocess.Popen[bytes]:
        """A command on a host, left running."""
        with (self.folder / f"{host}.log").open("ab") as output:
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
        return self.start_within(host, sys.executable, "-m", "cordee", *map(str, words), **variables)

    def start_within(self, host: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        """A command on a host whose words are of interest."""
        return subprocess.Popen(
            self.twin.command(host, words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, **self.environment, **variables},
        )

    def await_said(self, host: str, text: str) -> None:
        """Wait until a process on a host has said so."""
        log = self.folder / f"{host}.log"
        until(
            lambda: text in log.read_text(errors="replace") or any(one.poll() is not None for one in self.started),
            LONG_S,
        )
        assert text in log.read_text(errors="replace"), log.read_text(errors="replace")


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
def ray_cluster(cpus: Sequence[int], **more: Mapping[str, str]) -> Iterator[Nodes]:
    """A node on each host, with so many cores; the first is the head. `more`: hosts of one core, with variables."""
    with hosts(len(cpus) + len(more), f"{{}}:{RAY_PORT}") as nodes:
        nodes.environment["RAY_ADDRESS"] = nodes.address
        nodes.environment["RAY_TMPDIR"] = str(nodes.folder)
        for name, count in zip_longest(nodes.twin.cluster.names, cpus, fillvalue=1):
            where = address_of(nodes.twin.cluster, str(name))
            role = [f"--address={nodes.address}"]
            if name == "a":
                role = [f"--port={RAY_PORT}", "--head", f"--temp-dir={nodes.folder}", "--include-dashboard=false"]
            options = ["--object-store-memory=100000000", "--disable-usage-stats", "--block"]
            words = ["start", *role, f"--node-ip-address={where}", f"--num-cpus={count}", *options]
            nodes.start(str(name), BIN / "ray", *words, **more.get(str(name), {}))
            nodes.await_said(str(name), "Ray runtime started")  # one at a time: Ray gives each of them some seconds
        yield nodes


@contextlib.contextmanager
def spark_cluster(cores: Sequence[int]) -> Iterator[Nodes]:
    """A master on the first host, and on each of the others a worker with so many cores."""
    with hosts(len(cores) + 1, f"spark://{{}}:{SPARK_PORT}") as nodes:
        where = address_of(nodes.twin.cluster, "a")
        nodes.environment["SPARK_LOCAL_DIRS"] = nodes.environment["SPARK_WORKER_DIR"] = str(nodes.folder)
        nodes.environment["SPARK_LOCAL_IP"] = where
        found = importlib.util.find_spec("pyspark")
        assert found is not None and found.origin is not None
        nodes.environment["SPARK_HOME"] = str(Path(found.origin).parent)
        master = ("org.apache.spark.deploy.master.Master", "--host", where, "--port", str(SPARK_PORT))
        nodes.start("a", BIN / "spark-class", *master, "--webui-port", "0")
        nodes.await_said("a", "New state: ALIVE")
        for name, count in zip(nodes.twin.cluster.names[1:], cores, strict=True):
            own = address_of(nodes.twin.cluster, name)
            words = ("--host", own, "--cores", str(count), "--memory", "1g", "--webui-port", "0", nodes.address)
            nodes.start(
                name,
                *(BIN / "spark-class", "org.apache.spark.deploy.worker.Worker", *words),
                SPARK_LOCAL_IP=own,
            )
        for name in nodes.twin.cluster.names[1:]:
            nodes.await_said(name, "Successfully registered")
        yield nodes
