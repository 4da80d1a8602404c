"""Before the first step: does the batch fit the model, and do shares of it add up to the whole?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cordee
from cordee.core.errors import MixingError, ModelError
from cordee.train.job import Job
from cordee.train.preflight import preflight

cross_entropy = nn.functional.cross_entropy
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3


def look(model: nn.Module, loss: Any, **fields: Any) -> nn.Module:
    """Run the check on 8 of 40 samples."""
    job = Job(model=lambda: model, loss=loss, optimizer=torch.optim.SGD, data=(X, Y), **fields)
    preflight(job, model, job.data.train, lambda count: np.arange(count))
    return model


def contrast(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out @ out.T, torch.arange(len(out)))


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(6, 3),
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)),
    ],
    ids=["linear", "batchnorm", "dropout", "layernorm"],
)
def test_a_mean_over_samples_passes_and_leaves_no_trace(model: nn.Module) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    model.eval()
    look(model, cross_entropy)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda out, y: cross_entropy(out, y, reduction="sum"), "is a sum, not a mean"),
        (contrast, "compares samples with each other"),
        (lambda out, y: cross_entropy(out - out.mean(0), y), "not the mean of its parts"),
        (lambda out, y: cross_entropy(out, y, weight=torch.tensor([1.0, 5.0, 9.0])), "class weights"),
    ],
    ids=["sum", "contrast", "centred", "class weights"],
)
def test_a_loss_that_mixes_is_refused(loss: Any, words: str) -> None:
    with pytest.raises(MixingError, match=words):
        look(nn.Linear(6, 3), loss)


def test_a_mixing_gradient_behind_an_equal_loss_is_seen() -> None:
    """The mean of the outputs is taken off and put back, but only one of them is differentiated."""

    def sly(out: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(out - out.mean(0) + out.mean(0).detach(), y)

    with pytest.raises(MixingError, match="gradients differ"):
        look(nn.Linear(6, 3), sly)


def test_class_weights_pass_once_they_are_declared() -> None:
    weights = torch.tensor([1.0, 5.0, 9.0])

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(out, y, weight=weights)

    with pytest.raises(MixingError):
        look(nn.Linear(6, 3), loss)
    look(nn.Linear(6, 3), loss, weigh=lambda batch: float(weights[batch.y].sum()))


@pytest.mark.parametrize(
    ("model", "loss", "words"),
    [
        (nn.Linear(5, 3), cross_entropy, r"\(8, 6\) float32"),
        (nn.Linear(6, 2), cross_entropy, "Target 2 is out of bounds"),
        (nn.Linear(6, 3), lambda out, y: cross_entropy(out, y, reduction="none"), r"\(8,\).*one number"),
        (nn.Linear(6, 3), lambda out, y: 3.0, "float.*one number"),
        (nn.Linear(6, 3), lambda out, y: cross_entropy(out.detach(), y), "does not depend"),
    ],
    ids=["input", "classes", "no reduction", "no tensor", "detached"],
)
def test_a_model_that_does_not_fit_is_explained(model: nn.Module, loss: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        look(model, loss)


def test_our_own_errors_come_through() -> None:
    def refuse(out: Tensor, y: Tensor) -> Tensor:
        raise cordee.errors.DataError("odd")

    with pytest.raises(cordee.errors.DataError, match="odd"):
        look(nn.Linear(6, 3), refuse)
