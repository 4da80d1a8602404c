"""Watches a loop of the user's own: a step that trains past the session trains a model of its own on every worker."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from cordee.core.errors import UsageError

INSTEAD = "s.backward(loss) instead of loss.backward(), and s.step(optimizer) instead of optimizer.step()"


class Guard:
    """Looks at what a step of the loop has called, and where it called nothing, at the parameters.

    A step may call nothing: a loop that evaluates, or that only looks at its data, changes no parameter.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._before: dict[int, str] | None = None
        self._gradients = False

    def begin_loop(self, models: Iterable[nn.Module]) -> None:
        """A loop over batches begins with these parameters."""
        self._before = _marks(models)

    def begin_step(self) -> None:
        """A step begins."""
        self._gradients = False

    def backward(self) -> None:
        """The gradients of this step come from the session."""
        self._gradients = True

    def step(self) -> None:
        """An update is asked for."""
        if not self._gradients:
            raise UsageError(
                "step() was called for a batch without backward(): gradients that loss.backward() made are those of "
                f"this worker's share alone, and not weighted by its samples. Write {INSTEAD}"
            )
        self._before = None

    def end_step(self, models: Iterable[nn.Module], *, updates: int) -> None:
        """The next batch is asked for, after so many updates."""
        if updates:
            return
        if self._gradients:
            raise UsageError(
                "s.backward() was called, but no s.step() followed before the next batch. Write s.step(optimizer) "
                "where optimizer.step() stands. To gather gradients over several batches let the plan cut a step into "
                "them: accumulate=4, for instance"
            )
        now = _marks(models)  # read only here: steps that train as they should do not pay for it
        before, self._before = self._before, now
        if before is not None and any(before.get(key, mark) != mark for key, mark in now.items()):
            raise UsageError(
                "the parameters have changed, but neither s.backward() nor s.step() was called for this batch: every "
                f"worker would train a model of its own, on its share alone. Write {INSTEAD} and zero_grad()"
            )


def _marks(models: Iterable[nn.Module]) -> dict[int, str]:
    """What tells whether parameters have changed, by their content: not every optimizer counts versions up."""
    trained = [p for model in models for p in model.parameters() if p.is_floating_point() or p.is_complex()]
    parameters = {id(p): torch.view_as_real(p.detach()) if p.is_complex() else p.detach() for p in trained}
    return {
        key: f"{p.sum(dtype=torch.float64).item()} {torch.linalg.vector_norm(p, dtype=torch.float64).item()}"
        for key, p in parameters.items()
    }
