"""The command of the manifests, run as the pods of a Job would run it: each in a network and mounts of its own.

There is no API server here: what Kubernetes does (names, mounts, variables, starting a pod again) the test does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cordee.twin.cluster import Cluster
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin, missing
from engines.gates import Gates
from harness import DEADLINE_S, Run, assert_exact, assert_same, command, job_file, train, until

pytestmark = [pytest.mark.engines]
HOSTS = ("a", "b", "c")


@dataclass
class Pods:
    """The pods of a Job, each on a host of a twin."""

    twin: Twin
    folder: Path
    """What `cordee deploy` wrote."""
    volume: Path
    documents: list[dict[str, Any]] = field(default_factory=list)
    running: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        files = ("run.yaml", "secret.yaml")
        self.documents = [one for file in files for one in yaml.safe_load_all((self.folder / file).read_text())]
        self.volume.mkdir()
        token = self.volume.with_name("token")
        token.mkdir()
        for name, value in self.of("Secret")["stringData"].items():
            (token / name).write_text(value)
            (token / name).chmod(self.mode)
        hosts = self.twin.entry.hosts_file
        name = self.of("Job")["metadata"]["name"]
        lines = [f"10.213.77.{index + 1} {name}-{index}.{name}" for index in range(len(HOSTS))]
        hosts.write_text(hosts.read_text() + "\n".join(lines) + "\n")

    @property
    def mode(self) -> int:
        """Of the secret's files."""
        volumes = self.of("Job")["spec"]["template"]["spec"]["volumes"]
        return int(next(one["secret"]["defaultMode"] for one in volumes if "secret" in one))

    def of(self, kind: str) -> dict[str, Any]:
        """The document of a kind."""
        return next(one for one in self.documents if one["kind"] == kind)

    def start(self, index: int) -> None:
        """What a kubelet does."""
        container = self.of("Job")["spec"]["template"]["spec"]["containers"][0]
        places = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        sources = {"runs": self.volume, "token": self.volume.with_name("token")}
        # Under /srv alone, so that no folder has to be made on this machine.
        mounts = "mount -t tmpfs none /srv" + "".join(
            f" && mkdir -p {places[name]} && mount --bind {source} {places[name]}" for name, source in sources.items()
        )
        words = ["sh", "-c", f'{mounts} && exec "$@"', "sh", *container["command"]]
        self.running[index] = subprocess.Popen(
            self.twin.command(HOSTS[index], words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,  # what the image has as its working folder
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "JOB_COMPLETION_INDEX": str(index),
                "OMP_NUM_THREADS": "1",
            },
        )

    def ended(self, index: int) -> tuple[int, str, str]:
        """How a pod has ended, and what it has said."""
        said = self.running[index].communicate(timeout=DEADLINE_S)
        return (self.running[index].returncode, *said)


@pytest.fixture
def twin() -> Iterator[Twin]:
    """Three hosts."""
    if lacking := missing():
        pytest.skip(f"no twin can be made here: {'; '.join(lacking)}")
    made = Twin.up(Cluster.parse("3"), Registry())
    try:
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What one process trains."""
    return train("changing", tmp_path_factory.mktemp("alone"))


def deployed(twin: Twin, folder: Path, *more: str) -> Pods:
    """Three pods of one worker."""
    words = ("deploy", "kubernetes", job_file("changing"), "--image", "registry.example/changing:1", "--workers", "3")
    done = command(*words, "--out", folder / "k8s", "--trusted-network", *more)
    assert done.returncode == 0, done.stderr
    return Pods(twin, folder / "k8s", folder / "volume")


def test_three_pods_train_the_same(twin: Twin, alone: Run, tmp_path: Path) -> None:
    """The first one last: the others wait for its name."""
    pods = deployed(twin, tmp_path)
    for index in (1, 2, 0):
        pods.start(index)
    ends = [pods.ended(index) for index in range(3)]
    assert [code for code, *_ in ends] == [0, 0, 0], ends
    run = Run(pods.volume / "changing")
    assert_same(run, alone)
    assert {one["worker"]: one["host"] for one in run.of("worker")} == {0: "a", 1: "b", 2: "c"}
    token = pods.of("Secret")["stringData"]["token"]
    assert not any(token in said for _, *texts in ends for said in texts)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_pod_is_taken_away_and_started_again(number: signal.Signals, twin: Twin, alone: Run, tmp_path: Path) -> None:
    """By SIGTERM its worker leaves between two steps; the pod that is started again enters the run."""

    def take_away() -> str:
        pods.running[2].send_signal(number)
        return "go"

    def replaced() -> str:
        code, *said = pods.ended(2)
        assert code == (24 if number == signal.SIGTERM else -number), said
        pods.start(2)
        return "3"

    gates = Gates(tmp_path, at_6=take_away, at_10=replaced)
    pods = deployed(twin, tmp_path, *gates.words)
    for index in range(3):
        pods.start(index)
    ends = [pods.ended(index) for index in (0, 1)]
    gates.end()
    ends.append(pods.ended(2))
    assert [code for code, *_ in ends] == [0, 0, 0], ends
    run = Run(pods.volume / "changing")
    assert_same(run, alone)
    assert [one["host"] for one in run.of("joined")] == ["c"]
    assert len(run.of("left")) == (number == signal.SIGTERM) and len(run.of("failure")) == (number == signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_first_pod_is_taken_away(number: signal.Signals, twin: Twin, alone: Run, tmp_path: Path) -> None:
    """By SIGTERM the run stops with a checkpoint; otherwise the others end too. Started again, all go on from there."""

    def take_away() -> str:
        until(lambda: len(run().of("step")) >= 15)  # what is not on record yet is lost with its host
        pods.running[0].send_signal(number)
        if number == signal.SIGTERM:
            until(lambda: any("stopping" in one["message"] for one in run().of("warning")))
        return "go"

    def run() -> Run:
        return Run(pods.volume / "changing")

    gates = Gates(tmp_path, at_18=take_away)
    pods = deployed(twin, tmp_path, "--set", "save_steps=5", *gates.words)
    for index in range(3):
        pods.start(index)
    ends = [pods.ended(index) for index in range(3)]
    gates.end()
    codes = {130} if number == signal.SIGTERM else {-number, 23}
    assert {code for code, *_ in ends} == codes, ends
    for index in range(3):
        pods.start(index)
    ends = [pods.ended(index) for index in range(3)]
    assert [code for code, *_ in ends] == [0, 0, 0], ends
    assert [one["resume"] for one in run().of("start")] == [False, True]
    assert_exact(run(), alone)
