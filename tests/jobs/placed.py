"""A job whose workers die, wait or lose a result at exact places of a regrouping; see `instants.py`."""

from __future__ import annotations

import itertools
from typing import Any

import instants
import torch
from torch import Tensor, nn

import cordee
from cordee.group.team import Team
from cordee.sync import buckets
from cordee.train.job import Save, Stop


class Careless(torch.optim.SGD):
    """Uses the gradients as memory of its own, as some optimizers do."""

    def step(self, closure: Any = None) -> Any:
        done = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.zero_()
        return done


class OldStyle(torch.optim.Optimizer):
    """As many are written: weight decay is added to the gradient through `.data`, which no version counter sees."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "weight_decay": 1e-2})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad.data
                gradient.add_(parameter.data, alpha=group["weight_decay"]).mul_(0.5)
                parameter.data.add_(gradient, alpha=-group["lr"])


class Bounded(torch.optim.SGD):
    """Cuts gradients in place from its fifth step on."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        for group in self.param_groups if self.calls > 4 else ():
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)
        return super().step(closure)


def fading(params: Any) -> torch.optim.Optimizer:
    """Gradients are scaled in place before every update, by 1 in the first."""
    made = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    factors = itertools.chain([1.0], itertools.repeat(0.5))

    def scale(*_: Any) -> None:
        factor = next(factors)
        for group in made.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(factor)

    made.register_step_pre_hook(scale)
    return made


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=3e-3),
    "nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "decayed": lambda params: torch.optim.SGD(
        params, lr=0.1, momentum=0.9, nesterov=True, foreach=True, weight_decay=1e-3
    ),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=3e-3, maximize=True, foreach=True, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-4, maximize=True, foreach=True),
    "careless": lambda params: Careless(params, lr=0.1),
    "oldstyle": OldStyle,
    "bounded": lambda params: Bounded(params, lr=0.1),
    "fading": fading,
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Two buckets of gradients where the plan says bucket_mb=0.01: a hand-over has several tensors then.
        first = (nn.Linear(64, 48, bias=False), nn.BatchNorm1d(48), nn.ReLU())
        self.body = nn.Sequential(*first, nn.Linear(48, 48), nn.Linear(48, 10)).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.double())
        return out


def job(
    acts: str = "",
    words: str = "",
    optimizer: str = "adamw",
    stop_steps: int | None = None,
    save_steps: int | None = None,
    sets: int = 2,
) -> cordee.Job:
    buckets.SMALL_BYTES = buckets.SMALL_BYTES if sets == 2 else 0  # one set of buckets, as large models have
    instants.place(Team, words, acts)
    return cordee.Job(
        model=Model,
        loss=nn.functional.cross_entropy,
        optimizer=OPTIMIZERS[optimizer],
        data=cordee.data.digits(),
        batch=101,
        epochs=1,
        metrics={"accuracy": cordee.metrics.accuracy},
        stop=Stop(steps=stop_steps),
        save=Save(steps=save_steps),
        preflight=False,
    )
