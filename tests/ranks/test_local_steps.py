"""Local steps: replicas that merge every few steps, beside the same written by hand in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cordee.feed.batch import Batch
from cordee.feed.share import Share
from cordee.train.jobfile import load_job
from harness import Run, assert_same, job_file, train

Reference = Callable[..., Run]


@pytest.mark.parametrize(
    ("workers", "plan"), [(2, "sync=local"), (3, "sync=local,proportions=5:3:0"), (2, "sync=local,accumulate=3")]
)
def test_one_local_step_of_plain_sgd_is_all_reduce(
    workers: int, plan: str, reference: Reference, tmp_path: Path
) -> None:
    run = train("mlp", tmp_path / "run", workers=workers, plan=plan, optimizer="sgd")
    assert_same(run, reference("mlp", optimizer="sgd"))


def by_hand(every: int, shares: list[str], **outer: float) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of replicas that train side by side in this process and are averaged every few steps.

    With `outer`, what torch's SGD is given, the way to the average is a gradient for that.
    """
    job = load_job(job_file("mlp"), {"optimizer": "momentum"})
    order, share = job.order(job.resolve(1)), Share("proportional", tuple(map(float, shares)))
    workers = range(len(shares))
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    models = [job.model().train()]
    models += [copy.deepcopy(models[0]) for _ in workers[1:]]
    optimizers = [job.optimizer(model.parameters()) for model in models]
    seen, losses = [0.0] * len(shares), []
    merged = copy.deepcopy(models[0])
    outside = torch.optim.SGD(merged.parameters(), nesterov=True, **outer) if outer else None
    for step in range(order.steps):
        whole = order.ids(0, step)
        total = 0.0
        for worker in workers:
            ids = whole[np.asarray(share.positions(len(whole), workers, worker))]
            loss, _ = job.compute(models[worker], Batch(ids, job.data.train.gather(ids)))
            optimizers[worker].zero_grad()
            loss.backward()
            optimizers[worker].step()
            total += len(ids) * float(loss.detach())
            seen[worker] += len(ids)
        losses.append(total / len(whole))
        if (step + 1) % every == 0 or step + 1 == order.steps:
            average(models, seen)
            if outside is not None:
                step_towards(models, merged, outside)
            seen = [0.0] * len(shares)
    return losses, models[0].state_dict()


@torch.no_grad()
def step_towards(models: list[nn.Module], merged: nn.Module, outside: torch.optim.Optimizer) -> None:
    for parameter, mean in zip(merged.parameters(), models[0].parameters(), strict=True):
        parameter.grad = parameter - mean
    outside.step()
    for model in models:
        model.load_state_dict(merged.state_dict())


@torch.no_grad()
def average(models: list[nn.Module], weights: list[float]) -> None:
    for same in zip(*(model.parameters() for model in models), strict=True):
        mean = sum(one * weight for one, weight in zip(same, weights, strict=True)) / sum(weights)
        for one in same:
            one.copy_(mean)


@pytest.mark.parametrize("every", [4, 8])
def test_replicas_train_by_themselves_between_merges(every: int, reference: Reference, tmp_path: Path) -> None:
    plan = f"sync=local,local_steps={every},proportions=5:2"
    run = train("mlp", tmp_path / "run", workers=2, plan=plan, optimizer="momentum")
    losses, weights = by_hand(every, ["5", "2"])
    np.testing.assert_allclose(run.losses, losses, rtol=1e-12)
    for name, tensor in weights.items():
        assert float(np.abs(run.tensors[name] - tensor.numpy()).max()) <= 1e-9, name
    same = reference("mlp", optimizer="momentum")
    for name in ("samples", "samples_lost", "samples_repeated", "order_sha256"):  # the audit of samples is clean
        assert run.result[name] == same.result[name], name
    assert float(np.abs(run.tensors["body.0.weight"] - same.tensors["body.0.weight"]).max()) > 1e-6  # not all-reduce


def test_an_outer_update_with_momentum(tmp_path: Path) -> None:
    plan = "sync=local,local_steps=3,proportions=5:2,outer=nesterov,outer_lr=0.6,outer_momentum=0.8"
    run = train("mlp", tmp_path / "run", workers=2, plan=plan, optimizer="momentum")
    losses, weights = by_hand(3, ["5", "2"], lr=0.6, momentum=0.8)
    np.testing.assert_allclose(run.losses, losses, rtol=1e-12)
    for name, tensor in weights.items():
        assert float(np.abs(run.tensors[name] - tensor.numpy()).max()) <= 1e-9, name


def test_the_momentum_of_the_outer_update_is_resumed(tmp_path: Path) -> None:
    plan, settings = "sync=local,local_steps=3,outer=nesterov", {"optimizer": "sgd", "save_steps": 3}
    whole = train("mlp", tmp_path / "whole", workers=2, plan=plan, **settings)
    train("mlp", tmp_path / "run", workers=2, plan=plan, stop_steps=6, **settings)
    run = train("mlp", tmp_path / "run", workers=2, plan=plan, resume=True, **settings)
    assert_same(run, whole)


def test_a_checkpoint_holds_the_merged_model(tmp_path: Path) -> None:
    """Saved in the middle of a window, and resumed on another number of workers: each step's samples come once."""
    settings: dict[str, Any] = {"optimizer": "sgd", "stop_steps": 5}
    plan = "sync=local,local_steps=4"
    train("mlp", tmp_path / "run", workers=2, plan=plan, **settings)
    run = train("mlp", tmp_path / "run", workers=3, plan=plan, resume=True, optimizer="sgd")
    whole = train("mlp", tmp_path / "whole", workers=1, optimizer="sgd")
    assert run.result["order_sha256"] == whole.result["order_sha256"]
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)


@pytest.mark.parametrize("parts", [(2.0, 3.0, 2.0), (2.0, 3.0)])
def test_what_a_lost_worker_had_not_merged_is_counted(parts: tuple[float, ...], tmp_path: Path) -> None:
    """Also where one worker alone is left, with no other to merge with."""
    plan = f"sync=local,local_steps=1000,proportions={':'.join(map(str, parts))}"
    run = train("falling", tmp_path / "run", workers=len(parts), plan=plan, dies=1)
    share = len(Share("proportional", parts).positions(101, range(len(parts)), 1))
    assert [event["worker"] for event in run.of("failure")] == [1]
    assert run.result["samples_repeated"] == 0 and run.result["samples"] == 1003
    assert run.result["samples_lost"] == 4 * share  # of its four steps, which no merge had reached
    assert any("had not merged them yet" in event["message"] for event in run.of("warning"))
