"""The interface by which one replica of a model lies over workers.

What a worker holds of a tensor is a slice that knows its place in the whole (`group/sliced.py`), so that checkpoints
and gradients need no other interface.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn


@dataclass(frozen=True)
class Micro:
    """A micro-batch: some samples of a share."""

    compute: Callable[[], Any]
    """What the user's code makes of them with the model: their loss when they train."""
    factor: float = 1.0
    """How much their loss counts in the gradient."""
    kind: Hashable = None
    """Of two micro-batches with the same, all tensors in the model have the same shapes."""
    draw: int = 0
    """The same on all workers of the replica, and another one for each micro-batch."""


class Share(Protocol):
    """The samples of a step that one replica computes, as its split sees them."""

    def compute(self) -> None:
        """Forward and backward pass of all of them at once."""

    def micros(self, most: int) -> Sequence[Micro]:
        """Cut into at most so many micro-batches, none of them empty; there are none if the share is empty."""

    def done(self, losses: Sequence[Tensor] | None) -> None:
        """Their gradients are there; `losses` are those of the micro-batches, on workers that have them.

        None: a worker was lost.
        """


class Split:
    """How one replica lies over the workers that hold it together; as it is here, whole, on one."""

    aliases: Mapping[str, str] = {}
    """Names of parameters here that a checkpoint knows by another name, of a parameter that several stages use."""
    partly = False
    """Whether a worker holds some layers alone."""

    def place(self, model: nn.Module) -> nn.Module:
        """Keep of `model`, which is the same on all workers, what this one holds; called once, before the optimizer.

        What is returned computes what `model` did, together with the other workers of its replica.
        """
        return model

    def keep_stages(self, model: nn.Module) -> None:
        """Keep of a placed model the layers that lie here, if a worker holds some alone; in place."""

    def run(self, share: Share) -> None:
        """Forward and backward pass of a share; called by all workers of a replica."""
        share.compute()

    def evaluate(self, cut: Callable[[int], Sequence[Micro]]) -> list[Any] | None:
        """What each micro-batch gives without gradients, on workers that have it, else nothing; None: one was lost.

        `cut` gives at most so many of them. All workers of a replica call this.
        """
        return [micro.compute() for micro in cut(1)]

    def tell(self, result: Tensor | None) -> Tensor | None:
        """A tensor that `evaluate` led to, for all workers of a replica; None if one was lost."""
        return result

    def counts(self, parameter: nn.Parameter) -> bool:
        """Whether this worker is the one whose gradient of it counts for the norm of all."""
        return True

    def writes(self, name: str) -> bool:
        """Whether this worker's stage saves a parameter or buffer; of slices and shards of it, each its own."""
        return True
