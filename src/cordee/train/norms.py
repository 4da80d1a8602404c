"""The norm of each gradient: looked at for numbers that are not finite, and written down with its step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.errors import DivergedError
from cordee.train.precision import Readings

MOST_NAMED = 3


class Norms:
    """Checks norms as they come: at once on a CPU; on a GPU one step later, so that nothing waits for them."""

    def __init__(self, models: Sequence[nn.Module], came: Callable[[float], None] = lambda norm: None) -> None:
        """`models` are those that were prepared, and will be: their parameters have names.

        `came` is told the norms that `see` did not wait for.
        """
        self._models, self._came = models, came
        self._coming = Readings()
        self._of: tuple[int, int] | None = None

    def see(self, norm: Tensor, parameters: Sequence[nn.Parameter], of: tuple[int, int]) -> float | None:
        """The norm of a gradient of the step with this number and epoch; None if it comes later."""
        if norm.is_cuda:
            self._coming.add(norm, 1.0)
            self._of = of
            return None
        value = norm.item()
        if not math.isfinite(value):
            odd = [one for one in parameters if one.grad is not None and not _finite(one.grad)]
            self._refuse(odd, of, "no parameter was changed by it")
        return value

    def late(self) -> float | None:
        """Wait for the norm that `see` did not wait for; None if there is none."""
        if self._of is None:
            return None
        value, of, self._of = self._coming.total(), self._of, None
        self._coming.clear()
        if not math.isfinite(value):
            odd = [one for model in self._models for one in model.parameters() if not _finite(one.detach())]
            self._refuse(odd, of, "the parameters are changed by it already: go on from a checkpoint")
        self._came(value)
        return value

    def _refuse(self, odd: Sequence[nn.Parameter], of: tuple[int, int], consequence: str) -> None:
        if not odd:  # all numbers are finite, and only their squares are not
            return
        names = {id(one): name for model in self._models for name, one in model.named_parameters()}
        told = [names.get(id(one), f"a parameter of shape {tuple(one.shape)}") for one in odd]
        more = f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
        raise DivergedError(
            f"the gradient of step {of[0] + 1} (epoch {of[1] + 1}) is not finite, though the loss is: "
            f"{', '.join(told[:MOST_NAMED])}{more}; {consequence}. "
            "Usual causes: the root, norm or standard deviation of something that is zero, a division or log that "
            "torch.where only hides (its gradient is NaN all the same). Add a small number under the root, or clamp "
            "before the log; torch.autograd.set_detect_anomaly(True) names the operation"
        )


def learning_rate(optimizer: Optimizer) -> float | None:
    """Of its first group; None if it has none, or if it would have to be fetched from a GPU."""
    rate = optimizer.param_groups[0].get("lr")
    if isinstance(rate, Tensor):
        return rate.item() if rate.is_cpu else None
    return None if rate is None else float(rate)


def _finite(tensor: Tensor) -> bool:
    values = tensor if tensor.layout is torch.strided else tensor.coalesce().values()
    return bool(values.isfinite().all())
