"""The start of a training: what is made alone, what is agreed on, and how a worker enters in mid-run."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import cordee
from cordee.core.errors import CheckpointError
from cordee.group.team import Team
from cordee.state.export import PROGRAM, WEIGHTS
from cordee.train.agreement import refuse_another
from cordee.train.ending import end
from cordee.train.job import Job, Save, Stop
from cordee.train.loop import Training, run_job
from cordee.train.saving import Saver
from cordee.train.start import set_up, set_up_from
from cordee.train.stepper import Stepper
from cordee.train.stopping import Evaluations


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
    training = Training(wanted, stepper, setup, saver, Evaluations(wanted.stop, None), folder)
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


def test_a_run_does_not_go_on_with_another_batch(tmp_path: Path) -> None:
    kept = trained(tmp_path, 5).handed().extra
    assert (kept["next"], kept["living"]) == ([0, 5], [])
    refuse_another(kept["trained_on"], kept["trained_on"])
    other = {**kept["trained_on"], "batch": {**kept["trained_on"]["batch"], "batch": 50}}
    with pytest.raises(CheckpointError, match="another batch: saved batch 100, now batch 50"):
        refuse_another(kept["trained_on"], other)


def test_a_split_model_is_put_together_in_host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a replica that lies over workers: their GPUs may have room for its parts alone."""
    training = trained(tmp_path, 3)
    training.stepper.device = "meta"  # where tensors have no memory, and nothing can be read or computed
    monkeypatch.setattr(Team, "sliced", True)
    outcome = end(training)
    assert (tmp_path / PROGRAM).exists()
    state = training.setup.model.state_dict()
    assert all(torch.equal(one, state[name]) for name, one in load_file(tmp_path / WEIGHTS).items())
    assert outcome.result["params_sha256"]


def test_what_a_run_was_resumed_from_is_let_go_before_its_first_step(tmp_path: Path) -> None:
    """It holds the weights and the optimizer's state of the whole model, on every worker."""
    handed: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def receive() -> Any:
        given = trained(tmp_path / "first", 3).handed()
        handed.append(weakref.ref(given))
        return given

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if len(alive) < 2:
            gc.collect()
            alive.append(handed[0]() is not None)
        return nn.functional.cross_entropy(output, target)

    run_job(job(5, loss=loss), Stepper(), out=tmp_path / "second", receive=receive)
    assert alive == [False, False]
