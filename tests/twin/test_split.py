"""A model in slices on emulated hosts with two workers each: what one process trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import JOBS, Run, assert_same, command, train

SETTINGS = {"kind": "blocks", "epochs": 1, "clip": 0.5}


@pytest.mark.timeout(300)
def test_two_replicas_in_slices_on_two_hosts(able: None, warm: int, tmp_path: Path) -> None:
    words = [one for name, value in SETTINGS.items() for one in ("--set", f"{name}={value}")]
    words += ["--hosts", "2 x link=200mbit workers=2", "--plan", "tensor=2", "--out", str(tmp_path / "run")]
    done = command("twin", "run", JOBS / "sliced.py", *words)
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "run")
    assert_same(run, train("sliced", tmp_path / "alone", **SETTINGS), loss=1e-10, tensor=1e-8)
    (cut,) = run.of("cut")
    assert cut["loss"] < 1e-12 and cut["gradient"] < 1e-9
    assert sorted(one["host"] for one in run.of("worker")) == ["a", "a", "b", "b"]
