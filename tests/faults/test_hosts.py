"""Several hosts: network namespaces on this machine, with token and TLS, and what happens when one goes away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.core.errors import SecurityError
from cordee.group.token import write_token

JOB = """
import time
import torch
from torch import nn
import cordee

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)).double()
    def forward(self, x):
        time.sleep(0.02 if self.training else 0.0)
        return self.layers(x.double())

def job(epochs: int = 2) -> cordee.Job:
    return cordee.Job(model=Net, loss=nn.functional.cross_entropy, data=cordee.data.digits(),
                      optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch=101, epochs=epochs)
"""
PORT = 29500


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two namespaces with addresses 10.77.0.1 and 10.77.0.2, joined by a cable of their own."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip (iproute2)")
    names = [f"cordee-test-{os.getpid()}-{side}" for side in "ab"]
    cables = [f"cdt{os.getpid() % 10000}{side}" for side in "ab"]
    try:
        try:
            ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        except subprocess.CalledProcessError:
            pytest.skip("this kernel does not let us make a virtual cable (veth)")
        for number, (name, cable) in enumerate(zip(names, cables, strict=True), start=1):
            ip("netns", "add", name)
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        ip("link", "del", cables[0], check=False)
        for name, cable in zip(names, cables, strict=True):
            ip("-n", name, "link", "del", cable, check=False)
            ip("netns", "del", name, check=False)


class Run:
    """The same command on two hosts."""

    def __init__(self, hosts: list[str], folder: Path, workers: tuple[int, int] = (2, 1), epochs: int = 2) -> None:
        token = folder / "token"
        write_token(token)
        (folder / "job.py").write_text(JOB)
        self.out = folder / "run"
        self.processes = []
        for host, count in zip(hosts, workers, strict=True):
            command = ["ip", "netns", "exec", host, sys.executable, "-m", "cordee", "train", str(folder / "job.py")]
            command += ["--workers", str(count), "--rendezvous", f"10.77.0.1:{PORT}", "--nodes", "2"]
            command += ["--token-file", str(token), "--trusted-network", "--set", f"epochs={epochs}"]
            command += ["--out", str(self.out if host == hosts[0] else folder / "elsewhere")]
            out = subprocess.PIPE
            self.processes.append(subprocess.Popen(command, stdout=out, stderr=out, text=True, start_new_session=True))

    def wait_for_step(self, number: int, deadline_s: float = 60.0) -> None:
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            if any(event["event"] == "step" and event["step"] >= number for event in self.events()):
                return
            time.sleep(0.02)
        raise AssertionError(f"no step {number} within {deadline_s} s: {self.end(0)}")

    def events(self) -> list[dict]:
        file = self.out / "events.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def end(self, which: int, deadline_s: float = 90.0) -> tuple[int, str]:
        try:
            out, error = self.processes[which].communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.processes[which].returncode, out + error

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def result(self) -> dict:
        return json.loads((self.out / "result.json").read_text())


def alone(folder: Path) -> dict:
    out = folder / "alone"
    command = [sys.executable, "-m", "cordee", "train", str(folder / "job.py"), "--workers", "1", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=90)
    return json.loads((out / "result.json").read_text())


def check_same(result: dict, reference: dict) -> None:
    assert result["order_sha256"] == reference["order_sha256"]
    assert result["loss"] == pytest.approx(reference["loss"], rel=1e-12)
    assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)


@pytest.mark.slow  # tests/twin shows the same with three hosts
def test_two_hosts_train_as_one_process(hosts: list[str], tmp_path: Path) -> None:
    run = Run(hosts, tmp_path)
    assert run.end(0)[0] == 0, run.end(1)
    assert run.end(1)[0] == 0
    check_same(run.result(), alone(tmp_path))
    assert run.result()["workers"] == 3
    token = (tmp_path / "token").read_text().strip()
    for file in run.out.glob("*.json*"):
        assert token not in file.read_text()


@pytest.mark.slow  # tests/twin shows the same with three hosts
def test_a_host_that_is_cut_off_is_given_up(hosts: list[str], tmp_path: Path) -> None:
    run = Run(hosts, tmp_path, epochs=2)
    run.wait_for_step(5)
    ip("-n", hosts[1], "link", "set", "lo", "down")
    cable = subprocess.run(["ip", "-n", hosts[1], "-o", "link"], capture_output=True, text=True, check=True).stdout
    name = next(word.split("@")[0] for word in cable.split() if word.startswith("cdt"))
    ip("-n", hosts[1], "link", "set", name, "down")
    code, said = run.end(0)
    assert code == 0, said
    check_same(run.result(), alone(tmp_path))
    assert run.result()["failures"] == 1
    code, said = run.end(1)
    assert code == 23, said  # the cut-off host notices too, and ends


def test_the_launcher_of_a_host_is_killed(hosts: list[str], tmp_path: Path) -> None:
    run = Run(hosts, tmp_path)
    run.wait_for_step(5)
    run.processes[1].kill()
    code, said = run.end(0)
    assert code == 0, said
    check_same(run.result(), alone(tmp_path))


def test_off_loopback_nothing_starts_without_the_users_word(tmp_path: Path) -> None:
    from cordee.runtime.hosts import Meeting

    write_token(tmp_path / "token")
    with pytest.raises(SecurityError, match="--trusted-network"):
        Meeting("192.0.2.1", 1, 2, tmp_path / "token").address()
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(SecurityError, match="chmod 600"):
        Meeting("192.0.2.1", 1, 2, tmp_path / "token", trusted_network=True).address()
