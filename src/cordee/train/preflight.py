"""Before the first step: whether a batch fits the model, and shares of a batch add up to the whole.

Some samples are computed once together and once in two unequal parts. If loss and gradients of the parts do not add
up, the loss mixes samples (contrastive, pairwise), is not a mean, or the model keeps state of its batch; trained on
several workers it would silently learn something else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from cordee.core.errors import CordeeError, JobError, MixingError, ModelError
from cordee.feed.batch import Batch
from cordee.feed.source import Source
from cordee.train.job import Job
from cordee.train.metrics import tally_of

SAMPLES = 8
"""Enough to see a loss that mixes; few enough to cost nothing."""


def preflight(job: Job, model: nn.Module, source: Source, ids_of: Callable[[int], object], device: str = "cpu") -> None:
    """Raise `ModelError` or `MixingError` with an explanation; model, gradients and random state stay as they were."""
    import numpy as np

    ids = np.asarray(ids_of(SAMPLES), dtype=np.int64)
    buffers = [buffer.clone() for buffer in model.buffers()]
    random_state = torch.get_rng_state()
    modes = [(module, module.training) for module in model.modules()]
    try:
        _check(job, model, _Parts(job, source, ids, device))
    finally:
        torch.set_rng_state(random_state)
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, kept in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(kept)
        for module, training in modes:
            module.training = training


class _Parts:
    """The samples of the check, whole and in parts."""

    def __init__(self, job: Job, source: Source, ids: object, device: str) -> None:
        self._job, self._source, self._ids, self._device = job, source, ids, device
        self.count = len(ids)  # type: ignore[arg-type]

    def batch(self, start: int, stop: int) -> Batch:
        from cordee.feed.source import map_tensors

        ids = self._ids[start:stop]  # type: ignore[index]
        return Batch(ids, map_tensors(lambda tensor: tensor.to(self._device), self._source.gather(ids)))

    def weight(self, batch: Batch) -> float:
        return float(self._job.weigh(batch)) if self._job.weigh else float(len(batch))


def _check(job: Job, model: nn.Module, parts: _Parts) -> None:
    whole = parts.batch(0, parts.count)
    model.train()
    _fits(job, model, whole)
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
            _compare([of_whole, *(_loss_and_gradient(job, model, batch) for batch in halves)], weights, job)


def _fits(job: Job, model: nn.Module, batch: Batch) -> None:
    """One forward and backward pass, its errors told in the user's words."""
    try:
        loss, output = job.compute(model, batch)
    except CordeeError:
        raise
    except Exception as error:
        raise ModelError(
            f"the model or the loss does not accept a batch of the data.\n  a batch: {_shapes(batch.fields)}\n"
            f"  what PyTorch says: {type(error).__name__}: {error}\n"
            "Change the model's first or last layer, the loss, or the data so that they fit"
        ) from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ModelError(f"the loss of a batch is {shape}: expected one number, the mean over the batch")
    _metrics_fit(job, output, batch)
    if not loss.requires_grad:
        raise ModelError("the loss does not depend on any parameter of the model: is its output detached?")


def _metrics_fit(job: Job, output: object, batch: Batch) -> None:
    """Better now than after the first epoch."""
    for name, metric in job.metrics.items():
        if output is None:
            raise JobError(f"metric {name!r} needs the model's output: let objective return (loss, output)")
        try:
            tally_of(name, metric).update(output, batch.y)
        except Exception as error:
            shapes = f"output {_shapes(output)}, target {_shapes(batch.y)}"
            raise JobError(f"metric {name!r} does not work with {shapes}: {type(error).__name__}: {error}") from error


def _is_random(job: Job, model: nn.Module, batch: Batch) -> bool:
    values = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            values.append(float(job.compute(model, batch)[0].detach()))
    return values[0] != values[1]


def _loss_and_gradient(job: Job, model: nn.Module, batch: Batch) -> tuple[float, Tensor]:
    torch.manual_seed(0)
    model.zero_grad(set_to_none=True)
    loss, _ = job.compute(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [
        torch.zeros(p.numel()).double() if p.grad is None else p.grad.detach().double().flatten().cpu()
        for p in model.parameters()
        if p.requires_grad
    ]
    return float(loss.detach()), torch.cat(gradients) if gradients else torch.zeros(1).double()


def _compare(results: list[tuple[float, Tensor]], weights: list[float], job: Job) -> None:
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
        "Usual causes: a loss that compares samples with each other (contrastive, pairwise); class weights or "
        "ignore_index, where the mean is over something else than samples (declare it: Job(weigh=lambda batch: ...)); "
        "a layer that uses statistics of its batch.\n"
        "Shared over workers it would train something else than one process does. If you want that: preflight=False"
    )


def _shapes(fields: object) -> str:
    if isinstance(fields, Tensor):
        return f"{tuple(fields.shape)} {str(fields.dtype).removeprefix('torch.')}"
    if isinstance(fields, dict):
        return ", ".join(f"{name} {_shapes(value)}" for name, value in fields.items())
    if isinstance(fields, tuple | list):
        return ", ".join(_shapes(value) for value in fields)
    return type(fields).__name__
