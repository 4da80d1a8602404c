"""Hosts with two workers each, over real links: the first of each host sums for both, until its host is cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Run, assert_same, command, train

JOB = """
import time
import torch
from torch import nn
import cordee

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 900), nn.Tanh(), nn.Linear(900, 300), nn.Linear(300, 10)).double()
    def forward(self, x):
        time.sleep(0.02 if self.training else 0.0)
        return self.layers(x.double())

job = cordee.Job(model=Net, loss=nn.functional.cross_entropy, data=cordee.data.digits(),
                 optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch=101, epochs=2)
"""
"""The gradient has 2.6 MB: three pieces, which take a fifth of a second on these links."""


@pytest.mark.timeout(300)
def test_a_leader_is_killed_and_a_host_is_cut_off(able: None, warm: int, tmp_path: Path) -> None:
    (job := tmp_path / "job.py").write_text(JOB)
    words = ["--hosts", "3 x link=200mbit workers=2", "--out", str(tmp_path / "run")]
    done = command("twin", "run", job, *words, "--schedule", "at step 5: kill worker 2; at step 12: cut c")
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "run")
    assert sorted(event["worker"] for event in run.of("failure")) == [2, 4, 5]
    assert_same(run, train(job, tmp_path / "alone"))
