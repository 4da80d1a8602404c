"""What a global batch weighs: known at once for samples, added up while the forward pass runs for anything else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cordee.core.errors import UsageError
from cordee.feed.batch import Batch
from cordee.feed.feeder import Weigh
from cordee.group.comm import Comm, Gathering
from cordee.sync.tree import total
from cordee.train.precision import Readings


class GlobalWeight:
    """The weight of the global batch of the current step."""

    def __init__(self, comm: Comm, *, local: bool = False) -> None:
        """Nothing is weighed yet; `local`: only this worker's share counts, but it is compared with those of others."""
        self._comm, self._local = comm, local
        self._gathering: Gathering | None = None
        """Of the weights of all workers; None: the sum is known."""
        self._known = 0.0
        self._on_gpu = Readings()
        """The weight of a batch that was not waited for."""

    def know(self, weight: float) -> None:
        """It is a number of samples, which every worker knows."""
        self._known, self._gathering = weight, None
        self._on_gpu.clear()

    def weigh(self, batches: Sequence[Batch], weigh: Weigh, pieces: Sequence[int] = (), count: int = 1) -> None:
        """Weigh the micro-batches of a step, and begin to add up what the shares of all workers weigh.

        `pieces`: their numbers among the `count` that are added up in a tree, where that is so.
        """
        weights = [0.0 if batch.borrowed else weigh(batch) for batch in batches]
        alone = self._comm.size == 1 and not self._local
        if alone and not pieces and len(batches) == 1 and isinstance(weights[0], Tensor) and weights[0].is_cuda:
            # Alone, a batch is the whole of its step whatever it weighs, and a GPU need not be waited for.
            batches[0].weight = 1.0
            self.know(1.0)
            self._on_gpu.add(weights[0], 1.0)
            return
        for batch, weight in zip(batches, weights, strict=True):
            batch.weight = float(weight)
            if not 0.0 <= batch.weight < float("inf"):
                raise UsageError(
                    f"weigh says {batch.weight:g} for a batch of {len(batch)} samples (epoch {batch.epoch + 1}, step "
                    f"{batch.step + 1}): a weight is a finite number of at least 0, such as the number of tokens that "
                    "count"
                )
        parts = torch.zeros(count, dtype=torch.float64)
        for place, batch in zip(pieces or [0] * len(batches), batches, strict=True):
            parts[place] += batch.weight
        self.know(total(parts.tolist()))
        if self._comm.size > 1:
            self._gathering = self._comm.gather(parts)

    def total(self) -> float | None:
        """The sum over all workers; None if a worker was lost."""
        if self._gathering is not None:
            parts = self._gathering.wait()
            if parts is None:
                return None
            self._known, self._gathering = total(torch.stack(parts).sum(0).tolist()), None
        return self._known

    @property
    def nothing(self) -> bool:
        """Whether a batch that was taken to count once weighs nothing: its step changes nothing."""
        return self._on_gpu.waiting and self._on_gpu.total() == 0.0
