"""Metrics whose sums and counts add up over workers: the value of many is the value of one.

A metric is a function of (output, target) that gives one value per sample, or a pair (sum, count). One number for a
batch is refused: what it would come to depends on how the samples are cut into batches and shares. `torchmetrics`
objects are taken too; their states are merged the way each declares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from cordee.core.errors import JobError
from cordee.feed.source import map_tensors
from cordee.group.team import Team
from cordee.train.agreement import gather_bytes

MetricFunction = Callable[[Any, Any], "Tensor | tuple[Tensor | float, Tensor | float]"]
"""Per-sample values, or their (sum, count)."""


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Whether the class with the largest score is the right one; classes are in dimension 1 (or last, of sequences)."""
    return _ranked(output, target, 1)


def top5(output: Tensor, target: Tensor) -> Tensor:
    """Whether the right class is among the five with the largest scores."""
    return _ranked(output, target, 5)


def mean_absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """The distance between output and target, averaged within each sample."""
    return _per_sample((output.reshape(target.shape) - target).abs())


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared distance between output and target, averaged within each sample."""
    return _per_sample((output.reshape(target.shape) - target) ** 2)


def _ranked(output: Tensor, target: Tensor, k: int) -> Tensor:
    """Per-sample share of places where the target is among the best k: (n, classes[, ...]) or (n, length, classes)."""
    scores = output if target.shape == output.shape[:-1] else output.movedim(1, -1)
    best = scores.topk(min(k, scores.shape[-1]), dim=-1).indices
    return _per_sample((best == target.unsqueeze(-1)).any(-1).double())


def _per_sample(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values


class Lost(Exception):
    """A worker was lost before all had merged what they counted: the caller begins anew."""


class SumTally:
    """Sum and count of a metric function, in float64."""

    def __init__(self, name: str, function: MetricFunction) -> None:
        """Begin at zero; errors call it `name`."""
        self._name, self._function = name, function
        self.state = torch.zeros(2, dtype=torch.float64)
        """Sum and count."""

    def update(self, output: Any, target: Any) -> None:
        """Add the values of these samples."""
        result = self._function(output, target)
        if isinstance(result, tuple):
            self.state += self._pair(result)
        else:
            values = torch.as_tensor(result).detach().double().cpu()
            if values.numel() != 1 or len(target) != 1:  # of one sample, a number is its value
                self._check(tuple(values.shape), len(target))
            self.state += torch.stack([values.sum(), torch.tensor(float(len(target))).double()])

    def merge(self, team: Team) -> None:
        """Add up over all workers; may raise `Lost`."""
        parts = team.layers.gather(self.state).wait()
        if parts is None:
            raise Lost
        self.state = torch.stack(parts).sum(0)

    def value(self) -> float:
        """Sum over count."""
        return mean_of(*self.state.tolist())

    def _pair(self, result: tuple[Any, ...]) -> Tensor:
        parts = [torch.as_tensor(part).detach().double().cpu() for part in result]
        if len(parts) != 2 or any(part.numel() != 1 for part in parts):
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise JobError(
                f"metric {self._name!r} gives a tuple of shapes {shapes}: expected a pair (sum, count) of two numbers"
            )
        return torch.stack([part.reshape(()) for part in parts])

    def _check(self, shape: tuple[int, ...], samples: int) -> None:
        """Refuse all but one value for each of so many samples."""
        if shape == (samples,):
            return
        given = f"values of shape {shape} for {samples} samples" if shape else f"one number for {samples} samples"
        advice = "leave out the mean over the batch, or give its two parts"
        if shape:
            advice = "add .squeeze(1)" if shape == (samples, 1) else "average within each sample: .flatten(1).mean(1)"
        raise JobError(f"metric {self._name!r} gives {given}: return one value per sample, or (sum, count); {advice}")


class TorchmetricsTally:
    """A torchmetrics object: every state is gathered and merged the way the metric itself declares."""

    def __init__(self, metric: Any) -> None:
        """Work on a clone: the user's object stays as it was."""
        self._metric = metric.clone()
        self._metric.reset()
        self._value = float("nan")

    def update(self, output: Any, target: Any) -> None:
        """Pass on; a metric that keeps what it is given gets copies, because a batch's memory is reused."""
        if any(isinstance(state, list) for state in self._metric._defaults.values()):
            output, target = map_tensors(Tensor.clone, output), map_tensors(Tensor.clone, target)
        self._metric.update(output, target)

    def merge(self, team: Team) -> None:
        """Let the metric merge, over our own team; may raise `Lost`."""
        metric = self._metric
        metric.dist_sync_fn = lambda tensor, group=None: _gathered(team, tensor)
        metric.distributed_available_fn = lambda: team.shares > 1
        metric._update_count = max(metric._update_count, 1)  # an empty share is no reason for a warning
        value = metric.compute()
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise JobError(
                f"metric {type(metric).__name__} gives {value!r}: expected one number (torchmetrics: average='macro', "
                "or a metric of its own for each value)"
            )
        self._value = float(value)

    def value(self) -> float:
        """What the merged metric gave."""
        return self._value


def _gathered(team: Team, tensor: Tensor) -> list[Tensor]:
    """Those of all workers, of any shape and type.

    Without the empty ones, whose type (float) would become that of the labels they are put together with.
    """
    raw = gather_bytes(team.layers, save({"state": tensor.detach().cpu().contiguous()}))
    if raw is None:
        raise Lost
    parts = [load(one)["state"] for one in raw]
    return [part for part in parts if part.numel()] or parts


def mean_of(total: float, count: float) -> float:
    """Of nothing, NaN."""
    return total / count if count else float("nan")


def tally_of(name: str, metric: Any) -> SumTally | TorchmetricsTally:
    """The right tally for a function or a torchmetrics object."""
    if hasattr(metric, "update") and hasattr(metric, "_reductions"):
        return TorchmetricsTally(metric)
    if callable(metric):
        return SumTally(name, metric)
    raise JobError(f"metric {name!r} is {metric!r}: expected a function of (output, target) or a torchmetrics object")
