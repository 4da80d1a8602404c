"""A model over emulated hosts: what one process trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import DEADLINE_S, JOBS, Run, assert_same, command, train
from twin.emulated import Up

SETTINGS = {"kind": "blocks", "epochs": 1, "clip": 0.5}
SET = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.timeout(300)
def test_two_replicas_in_slices_on_two_hosts(able: None, warm: int, tmp_path: Path) -> None:
    words = [*SET, "--hosts", "2 x link=200mbit workers=2", "--plan", "tensor=2", "--out", str(tmp_path / "run")]
    done = command("twin", "run", JOBS / "sliced.py", *words)
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "run")
    assert_same(run, train("sliced", tmp_path / "alone", **SETTINGS), loss=1e-10, tensor=1e-8)
    (cut,) = run.of("cut")
    assert cut["loss"] < 1e-12 and cut["gradient"] < 1e-9
    assert sorted(one["host"] for one in run.of("worker")) == ["a", "a", "b", "b"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("plan", ["pipeline=2", pytest.param("shard=params", marks=pytest.mark.slow)])
def test_one_replica_over_two_hosts(up: Up, warm: int, tmp_path: Path, plan: str) -> None:
    """Both hosts write into one folder, as on a shared file system: each has a part of every checkpoint."""
    twin, out = up("2 x link=200mbit").made, tmp_path / "run"
    words = [sys.executable, "-m", "cordee", "train", str(JOBS / "sliced.py"), *SET, "--plan", plan, "--out", str(out)]
    words += ["--rendezvous", "a:29400", "--nodes", "2", "--workers", "1", "--trusted-network"]
    words += ["--token-file", str(twin.entry.token_file)]
    hosts = [subprocess.Popen(twin.command(host, words), stderr=subprocess.PIPE, text=True) for host in "ab"]
    try:
        ended = [one.communicate(timeout=DEADLINE_S)[1] for one in hosts]
    finally:
        for one in hosts:
            one.kill()
    assert [one.returncode for one in hosts] == [0, 0], ended
    run = Run(out)
    assert_same(run, train("sliced", tmp_path / "alone", **SETTINGS), loss=1e-10, tensor=1e-8)
    assert sorted(one["host"] for one in run.of("worker")) == ["a", "b"]


@pytest.mark.timeout(300)
def test_a_replica_over_hosts_without_a_common_folder_is_refused(able: None, warm: int, tmp_path: Path) -> None:
    """`twin run` gives each host a folder of its own."""
    words = [*SET, "--hosts", "2 x link=200mbit", "--plan", "pipeline=2", "--out", str(tmp_path / "run")]
    done = command("twin", "run", JOBS / "sliced.py", *words)
    assert done.returncode != 0
    assert "on b that is another folder" in done.stderr and "--out" in done.stderr
    assert not list((tmp_path / "run").rglob(".seen-*"))
