"""A host behind a slow link is named while a run goes on, by its worker and the cause."""

from __future__ import annotations

from pathlib import Path

from harness import Run, command

JOB = """
import torch
from torch import nn
import cordee
from cordee.train.job import Save, Stop

def job() -> cordee.Job:
    return cordee.Job(
        model=lambda: nn.Sequential(nn.Linear(64, 3000), nn.ReLU(), nn.Linear(3000, 10)),
        loss=nn.functional.cross_entropy, optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=cordee.data.digits(), batch=30, epochs=None, stop=Stop(steps=30), save=Save(epochs=None))
"""
"""Sends 0.9 MB per worker and step: most of a second at 10 Mbit/s."""


def test_the_host_behind_a_slow_link_is_named(able: None, warm: int, tmp_path: Path) -> None:
    job, out = tmp_path / "job.py", tmp_path / "run"
    job.write_text(JOB)
    hosts = "name=a link=1gbit, name=b link=10mbit, name=c link=1gbit"
    done = command("twin", "run", "--hosts", hosts, "--out", out, job)
    assert done.returncode == 0, done.stderr
    run = Run(out)
    assert [(one["worker"], one["host"], one["cause"]) for one in run.of("straggler")] == [(1, "b", "network")]
    assert "communicating over the slow link of its host" in done.stderr
    assert "worker 1 on b makes the others wait since step" in (out / "report.html").read_text()
