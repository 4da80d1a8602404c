"""Metrics whose sums and counts add up over workers: the value of many is the value of one.

A metric is a function of (output, target) that gives one value per sample, or a pair (sum, count). `torchmetrics`
objects are taken too; their states are added up the way each declares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

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
    return (output.reshape(target.shape) - target).abs().flatten(1).mean(1) if target.dim() > 1 else (output.reshape(target.shape) - target).abs()


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The squared distance between output and target, averaged within each sample."""
    error = (output.reshape(target.shape) - target) ** 2
    return error.flatten(1).mean(1) if target.dim() > 1 else error


def _ranked(output: Tensor, target: Tensor, k: int) -> Tensor:
    """Per-sample share of places where the target is among the best k: (n, classes[, ...]) or (n, length, classes)."""
    if target.dim() == output.dim() - 1 and target.shape == output.shape[:-1]:
        scores = output
    else:
        scores = output.movedim(1, -1)
    best = scores.topk(min(k, scores.shape[-1]), dim=-1).indices
    right = (best == target.unsqueeze(-1)).any(-1).double()
    return right.flatten(1).mean(1) if right.dim() > 1 else right


class Tally(Protocol):
    """Something that watches outputs and targets, and whose state adds up over workers."""

    def update(self, output: Any, target: Any) -> None:
        """One more (part of a) batch."""
        ...

    def tensors(self) -> list[Tensor]:
        """The state as tensors that may be summed over all workers, in place."""
        ...

    def value(self) -> float:
        """The metric, from the (summed) state."""
        ...


class SumTally:
    """Sum and count of a metric function, in float64."""

    def __init__(self, function: MetricFunction) -> None:
        """Begin at zero."""
        self._function = function
        self._state = torch.zeros(2, dtype=torch.float64)

    def update(self, output: Any, target: Any) -> None:
        """Add the values of these samples."""
        result = self._function(output, target)
        if isinstance(result, tuple):
            self._state += torch.tensor([float(result[0]), float(result[1])], dtype=torch.float64)
        else:
            values = torch.as_tensor(result).double()
            self._state[0] += values.sum().cpu()
            self._state[1] += max(values.numel(), 1) if values.dim() else float(len(target))

    def tensors(self) -> list[Tensor]:
        """Sum and count."""
        return [self._state]

    def value(self) -> float:
        """Sum over count."""
        return float(self._state[0] / self._state[1]) if self._state[1] else float("nan")


class TorchmetricsTally:
    """A torchmetrics object: states that are sums add up; others are refused with the reason."""

    def __init__(self, metric: Any) -> None:
        """Work on a clone: the user's object stays as it was."""
        self._metric = metric.clone()
        self._metric.reset()
        self._metric.sync_on_compute = False

    def update(self, output: Any, target: Any) -> None:
        """Pass on."""
        self._metric.update(output, target)

    def tensors(self) -> list[Tensor]:
        """The states, which `update` may have replaced by new tensors."""
        return [getattr(self._metric, name) for name in self._metric._defaults]

    def value(self) -> float:
        """Computed from the summed states."""
        self._metric._update_count = max(self._metric._update_count, 1)
        return float(self._metric.compute())


def tally_of(name: str, metric: Any) -> Tally:
    """The right tally for a function or a torchmetrics object."""
    from cordee.core.errors import JobError

    if hasattr(metric, "update") and hasattr(metric, "_reductions"):
        for state, reduction in metric._reductions.items():
            if getattr(reduction, "__name__", "") != "dim_zero_sum":
                raise JobError(
                    f"metric {name!r} ({type(metric).__name__}) keeps {state!r}, which is not a sum over samples; "
                    "metrics whose states are sums can be merged exactly over workers. Where torchmetrics offers it, "
                    "pass thresholds=..., which turns stored predictions into counts"
                )
        return TorchmetricsTally(metric)
    if callable(metric):
        return SumTally(metric)
    raise JobError(f"metric {name!r} is {metric!r}: expected a function of (output, target) or a torchmetrics object")
