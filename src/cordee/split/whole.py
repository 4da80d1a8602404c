"""A replica on one worker."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class Whole:
    """The worker holds all of its replica; see `Split`."""

    def place(self, model: nn.Module) -> nn.Module:
        """The model as it is."""
        return model

    def run(self, objective: Callable[[], Tensor], backward: Callable[[Tensor], None]) -> None:
        """Forward, backward."""
        backward(objective())
