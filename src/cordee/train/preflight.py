"""Before the first step: whether a batch fits the model, and shares of a batch add up to the whole.

Some samples are computed once together and once in two unequal parts. If loss and gradients of the parts do not add
up, the loss mixes samples (contrastive, pairwise), is not a mean, or the model keeps state of its batch; trained on
several workers it would silently learn something else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from cordee.core.errors import CordeeError, JobError, MixingError, ModelError
from cordee.feed.batch import Batch
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Source, map_tensors
from cordee.sync.batchnorm import set_aside
from cordee.train.fields import shapes
from cordee.train.job import Job
from cordee.train.metrics import tally_of
from cordee.train.misfit import broadcast, misfit, said

SAMPLES = 8
"""Enough to see a loss that mixes; few enough to cost nothing."""
USUAL_CAUSES = (
    "Usual causes: a loss that compares samples with each other (contrastive, pairwise); an output and a target of "
    "different shapes, (n, 1) and (n,), which are broadcast against each other; class weights or ignore_index, where "
    "the mean is over something else than samples (declare it: Job(weigh=lambda batch: ...)); a layer that uses "
    "statistics of its batch"
)

UNSTEADY = (
    "samples of the training data are others each time they are read, so the result depends on who reads them: they "
    "seem to draw from a generator of their own, or to change with what was read before. Let them draw from torch, "
    "random or np.random without a generator: there a sample draws the same in the same epoch, whoever reads it"
)


def preflight(job: Job, model: nn.Module, source: Source, ids_of: Callable[[int], object], device: str = "cpu") -> None:
    """Raise `ModelError` or `MixingError` with an explanation; model, gradients and random state stay as they were."""
    import numpy as np

    ids = np.asarray(ids_of(SAMPLES), dtype=np.int64)
    buffers = [buffer.clone() for buffer in model.buffers()]
    random_state = torch.get_rng_state()
    modes = [(module, module.training) for module in model.modules()]
    try:
        with warnings.catch_warnings(), set_aside(model):
            warnings.simplefilter("ignore")  # what goes on into training is said there, once
            _check(job, model, _Parts(job, source, ids, device))
    finally:
        torch.set_rng_state(random_state)
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, kept in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(kept)
        for module, training in modes:
            module.training = training


def is_steady(source: Source, ids: Ids) -> bool:
    """Whether samples are the same each time they are read, as far as these tell."""
    one, other = (_tensors(source.gather(ids)) for _ in range(2))
    return len(one) == len(other) and all(map(_alike, one, other))


def _alike(one: Tensor, other: Tensor) -> bool:
    same = torch.equal(one, other)
    return same or (one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))


class _Parts:
    """The samples of the check, whole and in parts."""

    def __init__(self, job: Job, source: Source, ids: Ids, device: str) -> None:
        self._job, self._source, self._ids, self._device = job, source, ids, device
        self.count = len(ids)
        self._whole = self._gather(0, self.count)

    def batch(self, start: int, stop: int) -> Batch:
        """Cut from what was read once: a data set that draws at random gives other samples each time."""
        if set(_lengths(self._whole.fields)) != {self.count}:  # a collate function makes something else of a batch
            return self._gather(start, stop)
        return Batch(self._ids[start:stop], map_tensors(lambda tensor: tensor[start:stop], self._whole.fields))

    def _gather(self, start: int, stop: int) -> Batch:
        ids = self._ids[start:stop]
        return Batch(ids, map_tensors(lambda tensor: tensor.to(self._device), self._source.gather(ids)))

    def weight(self, batch: Batch) -> float:
        return float(self._job.weigh(batch)) if self._job.weigh else float(len(batch))


def _lengths(fields: Fields) -> list[int]:
    """Of all tensors of a batch; of one without dimensions it is -1."""
    return [len(tensor) if tensor.dim() else -1 for tensor in _tensors(fields)]


def _tensors(fields: Fields) -> list[Tensor]:
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(note, fields)
    return found


def _check(job: Job, model: nn.Module, parts: _Parts) -> None:
    whole = parts.batch(0, parts.count)
    model.train()
    output = _fits(job, model, whole)
    if parts.count < 2:
        return
    # Exact BatchNorm is handled across workers, and dropout draws what it likes: both are set aside here.
    for module in model.modules():
        if isinstance(module, _BatchNorm | _DropoutNd):
            module.training = False
    if _is_random(job, model, whole):
        model.eval()
        if _is_random(job, model, whole):
            return  # random in every mode: nothing to compare
    of_whole = _loss_and_gradient(job, model, whole)
    # Two cuts: by chance, parts may weigh what their samples say though it is tokens that count.
    for cut in sorted({1, max(1, parts.count // 3)}):
        halves = [parts.batch(0, cut), parts.batch(cut, parts.count)]
        weights = [parts.weight(batch) for batch in (whole, *halves)]
        if min(weights) > 0:
            results = [of_whole, *(_loss_and_gradient(job, model, batch) for batch in halves)]
            _compare(results, weights, job, broadcast(output, whole))


def _computed(job: Job, model: nn.Module, batch: Batch, *, backward: bool = False) -> tuple[Tensor, Any]:
    """Loss and output, and gradients if wanted; errors are told in the user's words."""
    try:
        loss, output = job.compute(model, batch)
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
    except CordeeError:
        raise
    except Exception as error:
        raise misfit(error, model, batch) from error
    return loss, output


def _fits(job: Job, model: nn.Module, batch: Batch) -> Any:
    """The output of a first forward pass, whose loss and metrics are as they should be."""
    loss, output = _computed(job, model, batch)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ModelError(f"the loss of a batch is {shape}: expected one number, the mean over the batch")
    _metrics_fit(job, output, batch)
    if not loss.requires_grad:
        raise ModelError("the loss does not depend on any parameter of the model: is its output detached?")
    return output


def _metrics_fit(job: Job, output: object, batch: Batch) -> None:
    """Better now than after the first epoch."""
    for name, metric in job.metrics.items():
        if output is None:
            raise JobError(f"metric {name!r} needs the model's output: let objective return (loss, output)")
        target = job.target_of(batch)
        try:
            tally_of(name, metric).update(output, target)
        except JobError as error:  # names the metric already
            raise JobError(f"{error} (tried with {_tried(output, target)})") from error
        except Exception as error:
            raise JobError(f"metric {name!r} does not work with {_tried(output, target)}: {said(error)}") from error


def _tried(output: object, target: object) -> str:
    return f"output {shapes(output)}, target {shapes(target)}"


def _is_random(job: Job, model: nn.Module, batch: Batch) -> bool:
    values = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        # With gradients: a loss may need some of its own, as a gradient penalty does.
        values.append(float(_computed(job, model, batch)[0].detach()))
    return values[0] != values[1]


def _loss_and_gradient(job: Job, model: nn.Module, batch: Batch) -> tuple[float, Tensor]:
    torch.manual_seed(0)
    model.zero_grad(set_to_none=True)
    loss, _ = _computed(job, model, batch, backward=True)
    gradients = [
        _flat(torch.zeros_like(p) if p.grad is None else p.grad) for p in model.parameters() if p.requires_grad
    ]
    return float(loss.detach()), torch.cat(gradients) if gradients else torch.zeros(1).double()


def _flat(gradient: Tensor) -> Tensor:
    """Its numbers, the imaginary ones too."""
    dense = gradient.detach().to_dense()
    return (torch.view_as_real(dense) if dense.is_complex() else dense).double().flatten().cpu()


def _compare(results: list[tuple[float, Tensor]], weights: list[float], job: Job, cause: str) -> None:
    """Raise `MixingError` if the parts do not add up; `cause`, if it is not empty, is what seems to be behind it."""
    (whole, whole_gradient), (first, first_gradient), (second, second_gradient) = results
    total = weights[1] + weights[2]
    added = (weights[1] * first + weights[2] * second) / total
    gradient = (weights[1] * first_gradient + weights[2] * second_gradient) / total
    scale = max(abs(whole), abs(first), abs(second), 1e-6)
    off = abs(whole - added) / scale
    norm = float(torch.maximum(whole_gradient.norm(), gradient.norm())) or 1.0
    gradient_off = float((whole_gradient - gradient).norm()) / norm
    if off < 1e-3 and gradient_off < 1e-2 and abs(weights[0] - total) <= 1e-6 * total:
        return
    if abs(whole - (first + second)) / scale < 1e-3:
        raise MixingError(
            f"the loss is a sum, not a mean: {whole:.6g} for all samples, {first:.6g} and {second:.6g} for two parts. "
            "Cordée weighs shares by their samples and expects a mean: divide by the number of samples "
            "(reduction='mean')"
        )
    per = "what `weigh` says" if job.weigh else "their samples"
    raise MixingError(
        f"the loss of a batch is not the mean of its parts, weighted by {per}: {whole:.6g} for all samples together, "
        f"{added:.6g} from two parts of {weights[1]:g} and {weights[2]:g} (gradients differ by {gradient_off:.1%}).\n"
        f"{cause or USUAL_CAUSES}.\n"
        "Shared over workers it would train something else than one process does. If you want that: preflight=False"
    )
