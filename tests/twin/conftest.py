"""Twins for tests: each is taken down afterwards, and nothing of it may be left."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.twin.quota import Quotas
from cordee.twin.twin import missing
from harness import DEADLINE_S, command
from twin.emulated import JOB, Emulated, Up, cables, left, namespaces


@pytest.fixture(scope="session")
def able() -> None:
    """Skips where hosts with links and CPU shares cannot be made."""
    lacking = missing()
    if quotas := Quotas("x").missing:
        lacking.append(quotas)
    if lacking:
        pytest.skip(f"no twin can be made here: {'; '.join(lacking)}")
    space = f"cordee-trial-{os.getpid()}"
    trial = [
        f"ip netns add {space}",
        f"ip -n {space} link add name one type veth peer name two",
        f"ip -n {space} link add name bridge type bridge",
        f"tc -n {space} qdisc add dev one root tbf rate 1mbit burst 32000 latency 50ms",
    ]
    try:
        for words in trial:
            done = subprocess.run(words.split(), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            if done.returncode != 0:
                pytest.skip(f"this kernel does not let us `{words}`: {done.stderr.strip()}")
    finally:
        subprocess.run(["ip", "netns", "delete", space], capture_output=True, timeout=DEADLINE_S, check=False)


@pytest.fixture
def up(able: None) -> Iterator[Up]:
    """Makes twins by `cordee twin up --hosts`."""
    before, made = cables(), list[tuple[str, set[int]]]()

    def make(hosts: str) -> Emulated:
        name = f"e{secrets.token_hex(4)}"
        done = command("twin", "up", "--hosts", hosts, "--name", name)
        made.append((name, set(namespaces(name).values())))
        assert done.returncode == 0, done.stderr
        return Emulated(name)

    try:
        yield make
    finally:
        for name, _ in made:
            command("twin", "down", name)
    assert {name: things for name, numbers in made if (things := left(name, numbers, before))} == {}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A small job's file."""
    file = tmp_path / "job.py"
    file.write_text(JOB)
    return file
