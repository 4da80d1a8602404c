"""A job refuses what cannot work, and names what was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import cordee
from cordee.core.errors import JobError


def job(**fields: Any) -> cordee.Job:
    given: dict[str, Any] = {
        "model": lambda: nn.Linear(64, 10),
        "loss": nn.functional.cross_entropy,
        "optimizer": torch.optim.SGD,
        "data": cordee.data.digits(),
    }
    return cordee.Job(**{**given, **fields})


class Own:
    """A loss of somebody's own."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: job(metrics={"loss": cordee.metrics.accuracy}), "metrics: 'loss' is the name"),
        (
            lambda: job(metrics={"accuracy": cordee.metrics.accuracy}, stop=cordee.Stop(metric="-acuracy")),
            "stop.metric='-acuracy': this job has no metric 'acuracy'. Did you mean accuracy? It has loss, accuracy",
        ),
        (
            lambda: job(data=torch.zeros(8, 1), stop=cordee.Stop(metric="loss")),
            "stop.metric='loss' goes by a validation metric, but the data have no validation set",
        ),
        (lambda: job(save=cordee.Save(keep_best="zeal")), "save.keep_best='zeal': this job has no metric 'zeal'."),
        (
            lambda: job(loss=nn.MSELoss),
            "loss is the class MSELoss: expected a function or an instance, nn.MSELoss()",
        ),
        (
            lambda: job(loss=None, objective=Own),
            "objective is the class Own: expected a function or an instance, Own()",
        ),
        (lambda: job(loss="mse"), "loss='mse': expected a function of (output, target)"),
        (lambda: job(tensor_plan=["0"]), "tensor_plan=['0']: expected a dict from names of layers to cuts"),
        (lambda: job(stages="2"), "stages='2': expected a list with the name of the first layer of each stage"),
        (lambda: job(stages=[0, 2]), "stages=[0, 2]: expected a list with the name of the first layer of each stage"),
        (lambda: job(schedule="cosine"), "schedule='cosine': expected a function that makes it"),
    ],
)
def test_a_wrong_field_is_named(make: Any, words: str) -> None:
    with pytest.raises(JobError) as caught:
        make()
    assert str(caught.value).startswith(words)
    assert not str(caught.value).rstrip().endswith(",")


def test_a_job_is_made_as_its_signature_says() -> None:
    assert list(inspect.signature(cordee.Job).parameters)[:3] == ["model", "data", "optimizer"]
    made = cordee.Job(lambda: nn.Linear(64, 10), cordee.data.digits(), torch.optim.SGD, loss=nn.functional.mse_loss)
    assert (made.batch, made.epochs) == (32, 1)


def made(**fields: Any) -> Any:
    """All that a training makes of a job at its start."""
    given = job(**fields)
    optimizer = given.make_optimizer(given.make_model())
    return given.make_schedule(optimizer)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": lambda: None}, "model: the function gave None, expected a torch.nn.Module. Is its return missing?"),
        ({"model": lambda: nn.Linear}, "model: the function gave the class Linear, expected a torch.nn.Module"),
        ({"optimizer": lambda params: None}, "optimizer: the function gave None, expected a torch.optim.Optimizer."),
        ({"optimizer": lambda params: {"lr": 1}}, "optimizer: the function gave a dict, expected a torch.optim.Opt"),
        ({"schedule": lambda sgd: None}, "schedule: the function gave None, expected a schedule of torch.optim"),
        ({"schedule": lr_scheduler.ReduceLROnPlateau}, "schedule: ReduceLROnPlateau moves on by a value (metrics), "),
    ],
)
def test_a_function_that_makes_something_else(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError) as caught:
        made(**fields)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda sgd: lr_scheduler.StepLR(sgd, 2),
        lambda sgd: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(sgd), lr_scheduler.ExponentialLR(sgd, 0.9)]),
        lambda sgd: lr_scheduler.SequentialLR(
            sgd, [lr_scheduler.ConstantLR(sgd), lr_scheduler.CosineAnnealingLR(sgd, 9)], milestones=[3]
        ),
    ],
)
def test_schedules_that_go_by_steps_are_taken(schedule: Callable[[Any], Any]) -> None:
    assert made(schedule=schedule) is not None
    assert made(schedule=None) is None


def test_parameters_can_be_gone_through_more_than_once() -> None:
    """A group by group choice from a generator would leave the second group empty, and so untrained."""

    def grouped(params: Any) -> torch.optim.Optimizer:
        wide, narrow = ([one for one in params if (one.ndim > 1) is wanted] for wanted in (True, False))
        return torch.optim.SGD([{"params": wide, "weight_decay": 0.1}, {"params": narrow}], lr=0.1)

    given = job(optimizer=grouped)
    optimizer = given.make_optimizer(given.make_model())
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]


@pytest.mark.parametrize(
    ("total", "per", "steps", "fits"),
    [
        (30, "step", 30, True),
        (29, "step", 30, False),
        (29, "step", None, True),
        (3, "epoch", 30, True),
        (3, "epoch", 39, True),  # the fourth epoch does not end
        (2, "epoch", 30, False),
    ],
)
def test_a_schedule_that_ends_before_the_run(total: int, per: str, steps: int | None, fits: bool) -> None:
    given = job(schedule=lambda sgd: lr_scheduler.OneCycleLR(sgd, 0.1, total_steps=total), schedule_per=per)
    schedule = given.make_schedule(given.make_optimizer(given.make_model()))
    if fits:
        given.check_schedule(schedule, steps, 10)
        return
    with pytest.raises(JobError, match=rf"OneCycleLR ends after total_steps={total}, but it moves on .* every {per}"):
        given.check_schedule(schedule, steps, 10)
