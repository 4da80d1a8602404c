"""A model that memory cannot hold is refused before it is on a device, and a start that runs out of memory says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cordee
from cordee.core.errors import PlanError
from cordee.core.plan import Plan
from cordee.diagnose.room import Room
from cordee.train import early
from cordee.train.job import Job
from cordee.train.loop import run_job
from cordee.train.stepper import Stepper

PARAMETERS = 4 * 65 * 10
"""Bytes of the model."""


def job(calls: list[str], failure: Exception | None = None, huge: int = 0) -> Job:
    def objective(model: nn.Module, batch: cordee.Batch) -> Tensor:
        calls.append("pass")
        if failure is not None:
            raise failure
        torch.empty(huge, dtype=torch.uint8)
        return nn.functional.cross_entropy(model(batch.x), batch.y)

    return Job(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        objective=objective,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        data=cordee.data.digits(),
        batch=100,
        stop=cordee.Stop(steps=1),
    )


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (PARAMETERS - 1, ["holds the whole model, also where the plan cuts it", "0.0 MiB of GPU", "fewer workers"]),
        (4 * PARAMETERS - 1, ["recompute=block does not fit: a worker needs at least", "offload=optimizer", "shard="]),
    ],
)
def test_it_is_refused_before_it_is_on_a_device(
    room: int, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(early, "room_of", lambda model, device: Room(room, 2**40, on_gpu=True))
    monkeypatch.setattr(nn.Module, "to", lambda *_: calls.append("to"))
    with pytest.raises(PlanError) as refused:
        run_job(job(calls), Stepper(plan=Plan(recompute="block")), out=tmp_path)
    assert all(word in str(refused.value) for word in words) and calls == []


def test_an_optimizer_that_wants_the_model_itself_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made for parameters without memory: neither their values nor their hooks are the model's."""
    made = Job(**{**vars(job([])), "optimizer": lambda params: torch.optim.SGD(params, lr=params[0].tolist()[0])})
    model, stepper = made.make_model(), Stepper()
    memory = early.EarlyMemory(made, stepper, made.order(made.resolve(1)), model)
    monkeypatch.setattr(early, "room_of", lambda model, device: Room(2 * PARAMETERS, 0))
    memory.check()
    monkeypatch.setattr(early, "room_of", lambda model, device: Room(2 * PARAMETERS - 1, 0))
    with pytest.raises(PlanError, match=r"parameters 0\.0 MiB, gradients 0\.0 MiB, optimizer state not known"):
        memory.check()


@pytest.mark.parametrize(
    ("failure", "huge"),
    [(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has"), 0), (None, 2**60)],
    ids=["on a GPU", "on a CPU"],
)
def test_a_start_that_runs_out_of_memory_says_what_to_change(
    failure: Exception | None, huge: int, tmp_path: Path
) -> None:
    with pytest.raises(PlanError) as refused:
        run_job(job([], failure, huge), Stepper(), out=tmp_path)
    said = str(refused.value)
    expected = ["memory ran out before the first step (", "ocate", "optimizer state", "recompute=block", "tensor=2"]
    assert all(word in said for word in expected), said


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(cordee.core.errors.ModelError, match="of another kind"):
        run_job(job([], RuntimeError("of another kind")), Stepper(), out=tmp_path)
