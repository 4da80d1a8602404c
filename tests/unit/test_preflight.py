"""Before the first step: does the batch fit the model, and do shares of it add up to the whole?"""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cordee
from cordee.core.errors import JobError, MixingError, ModelError
from cordee.diagnose.preflight.check import preflight
from cordee.train.checks import subject_of
from cordee.train.job import Job

cross_entropy = nn.functional.cross_entropy
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3


def look(model: nn.Module, loss: Any, data: Any = (X, Y), **fields: Any) -> nn.Module:
    """Run the check on 8 of 40 samples."""
    job = Job(model=lambda: model, loss=loss, optimizer=torch.optim.SGD, data=data, **fields)
    preflight(subject_of(job, model), job.data.train, lambda count: np.arange(count))
    return model


def contrast(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out @ out.T, torch.arange(len(out)))


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(6, 3),
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)),
    ],
    ids=["linear", "batchnorm", "batchnorm without running statistics", "dropout", "layernorm"],
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


# ------------------------------------------------------------- what is said of an error

FIT = "so that they fit"


class Misspelt(nn.Linear):
    """A model with a mistake in a function that it calls."""

    def forward(self, x: Tensor) -> Tensor:
        return helper(super().forward(x))


def helper(scores: Tensor) -> Tensor:
    return scores.sofmax(1)  # type: ignore[attr-defined, no-any-return]


def test_an_error_in_the_users_code_is_told_with_its_line_and_without_advice_on_shapes() -> None:
    with pytest.raises(ModelError) as caught:
        look(Misspelt(6, 3), cross_entropy)
    line = helper.__code__.co_firstlineno + 1
    assert f"{Path(__file__).name}, line {line}, in helper" in str(caught.value)
    assert "AttributeError" in str(caught.value) and FIT not in str(caught.value)


def test_an_error_in_an_installed_package_is_told_with_the_line_that_called_it() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return out * json.loads("odd")  # type: ignore[no-any-return]

    with pytest.raises(ModelError, match=rf"JSONDecodeError.*{Path(__file__).name}, line \d+, in loss\)$"):
        look(nn.Linear(6, 3), loss)


def test_an_error_in_a_metric_is_told_with_its_line() -> None:
    with pytest.raises(JobError, match=rf"metric 'odd'.*output \(8, 3\).*{Path(__file__).name}, line \d+, in helper"):
        look(nn.Linear(6, 3), cross_entropy, metrics={"odd": lambda out, y: helper(out)})


def test_a_refused_metric_is_told_in_a_sentence() -> None:
    with pytest.raises(JobError, match=r"metric 'odd' gives one number for 8 samples") as caught:
        look(nn.Linear(6, 3), cross_entropy, metrics={"odd": lambda out, y: out.mean()})
    assert "JobError" not in str(caught.value) and "output (8, 3)" in str(caught.value)


def test_an_error_in_a_part_of_the_batch_is_told_too() -> None:
    """A model that loses the dimension of its samples when there is but one of them."""

    class Squeezing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).squeeze()

    with pytest.raises(ModelError, match=r"x \(1, 6\)"):
        look(Squeezing(6, 1), lambda out, y: (out[:, None] - y).mean())


@pytest.mark.parametrize(
    ("data", "loss", "words"),
    [
        ((X.double(), Y), cross_entropy, r"x of the data is float64.*\.astype\(np\.float32\)"),
        (((10 * X).int(), Y), cross_entropy, r"x of the data is int32.*\.astype\(np\.float32\)"),
        ((X, Y.int()), cross_entropy, r"\.astype\(np\.int64\)"),
        ((X, Y + 5), cross_entropy, "the largest of this batch is 7"),
        ((X[:, :5], Y), cross_entropy, FIT),
        ((X, Y[:, None]), cross_entropy, FIT),
    ],
    ids=["doubles", "integers", "targets", "classes", "input", "columns"],
)
def test_what_does_not_fit_gets_advice(data: Any, loss: Any, words: str) -> None:
    with pytest.raises(ModelError, match=f"(?s)does not accept.*{words}"):
        look(nn.Linear(6, 3), loss, data)


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, lambda out, y: (out - y).square().mean()])
def test_broadcasting_is_named_and_warns_of_nothing_else(loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns of it at every pass
        with pytest.raises(
            MixingError, match=r"broadcasting: an output of shape \(8, 1\) and a target of \(8,\)"
        ) as caught:
            look(nn.Linear(6, 1), loss, (X, X.sum(1)))
    assert "y[:, None]" in str(caught.value) and "contrastive" not in str(caught.value)


def test_broadcasting_is_not_blamed_for_what_else_mixes() -> None:
    with pytest.raises(MixingError, match=r"Usual causes: .*broadcast") as caught:
        look(nn.Linear(6, 1), lambda out, y: (out - y).square().mean().sqrt(), (X, X.sum(1, keepdim=True)))
    assert "The cause is broadcasting" not in str(caught.value)


class Drawing(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Gives another version of a sample each time, as augmentation does."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + torch.randn(6), Y[index]


def test_a_data_set_that_draws_at_random_does_not_look_like_a_loss_that_mixes() -> None:
    look(nn.Linear(6, 3), cross_entropy, data=Drawing())
    with pytest.raises(MixingError):
        look(nn.Linear(6, 3), contrast, data=Drawing())


def penalised(model: nn.Module, batch: Any, *, mixed: bool = False) -> Tensor:
    x = batch.x.clone().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    penalty = slope.mean(0).square().sum() if mixed else slope.square().sum(1).mean()
    return cross_entropy(out, batch.y) + penalty


def test_a_loss_may_use_gradients_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    look(model, None, objective=penalised)
    with pytest.raises(MixingError):
        look(model, None, objective=partial(penalised, mixed=True))


class Phase(nn.Module):
    """The loss depends on the imaginary part of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex64) @ self.weight).imag


def test_complex_parameters_are_compared_whole() -> None:
    look(Phase(), cross_entropy)
    with pytest.raises(MixingError):
        look(Phase(), contrast)
