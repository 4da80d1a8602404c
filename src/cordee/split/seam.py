"""The interface by which one replica of a model lies over workers.

What a worker holds of a tensor is a slice that knows its place in the whole (`group/sliced.py`), so that checkpoints
and gradients need no other interface.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class Split:
    """How one replica lies over the workers that hold it together; as it is here, whole, on one."""

    def place(self, model: nn.Module) -> nn.Module:
        """Keep of `model`, which is the same on all workers, what this one holds; called once, before the optimizer.

        What is returned computes what `model` did, together with the other workers of its replica.
        """
        return model

    def run(self, objective: Callable[[], Tensor], backward: Callable[[Tensor], None]) -> None:
        """One micro-batch: `objective` gives its loss, `backward` takes it; called by all workers of a replica."""
        backward(objective())
