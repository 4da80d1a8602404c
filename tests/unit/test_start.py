"""The start of a training: what is made alone, what is agreed on, and how a worker enters in mid-run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cordee
from cordee.core.errors import CheckpointError
from cordee.group.team import Team
from cordee.train.best import Best
from cordee.train.job import Job, Save, Stop
from cordee.train.loop import Training, run_job
from cordee.train.progress import Progress
from cordee.train.saving import Saver
from cordee.train.start import set_up, set_up_from
from cordee.train.stepper import Stepper


def job(steps: int, **changed: Any) -> Job:
    settings: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 10)),
        "loss": nn.functional.cross_entropy,
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        "schedule": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
        "data": cordee.data.digits(),
        "batch": 100,
        "stop": Stop(steps=steps),
        "save": Save(epochs=None),
    }
    return Job(**{**settings, **changed})


def trained(folder: Path, steps: int) -> Training:
    """A training after so many steps, before its end."""
    wanted, stepper = job(steps), Stepper()
    saver = Saver(folder / "checkpoints", wanted.save, stepper.team.channel)
    setup, _ = set_up(wanted, stepper, saver, resume=False)
    training = Training(wanted, stepper, setup, saver, Best(wanted), folder)
    training.train()
    return training


def test_a_worker_enters_with_what_another_one_hands_over(tmp_path: Path) -> None:
    undisturbed = run_job(job(20), Stepper(), out=tmp_path / "whole").result
    given = trained(tmp_path / "first", 7).handed()
    entered = run_job(job(20), Stepper(), out=tmp_path / "second", receive=lambda: given).result
    same = ("steps", "epochs", "samples", "loss", "validation", "test", "order_sha256", "params_sha256")
    assert {name: entered[name] for name in same} == {name: undisturbed[name] for name in same}


def test_entering_calls_no_collective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = trained(tmp_path, 3).handed()

    def refuse(*args: Any, **settings: Any) -> bool:
        raise AssertionError("a collective")

    stepper = Stepper()
    for name in ("settle", "agree", "share_from_first"):
        monkeypatch.setattr(Team, name, refuse)
    monkeypatch.setattr(Team, "alone", property(lambda team: False))
    setup, _ = set_up_from(job(20), stepper, lambda: given)
    assert setup.resolved.batch == 100
    with pytest.raises(AssertionError, match="a collective"):
        set_up(job(20), stepper, Saver(tmp_path, Save(), stepper.team.channel), resume=False)


def test_progress_is_a_value_that_a_snapshot_keeps(tmp_path: Path) -> None:
    training = trained(tmp_path, 5)
    progress = training.progress()
    assert (progress.epoch, progress.step) == training.next == (0, 5)
    assert Progress.of(training.handed()) == progress.__class__(**{**vars(progress), "living": []})
    with pytest.raises(CheckpointError, match="another batch: batch 100 → 50"):
        progress.check(data=progress.data, asked={**progress.asked, "batch": 50}, order=progress.order)
    assert progress.changed_settings(progress.settings) == ""
    assert "lr 0.5" in progress.changed_settings({**progress.settings, "lr": 0.5})
