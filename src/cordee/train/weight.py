"""What a global batch weighs: known at once for samples, added up while the forward pass runs for anything else."""

from __future__ import annotations

import torch

from cordee.group.gathering import Gathering
from cordee.group.rope import Rope


class GlobalWeight:
    """The weight of the global batch of the current step."""

    def __init__(self, rope: Rope) -> None:
        """Nothing is weighed yet."""
        self._rope = rope
        self._gathering: Gathering | None = None
        self._pending = False
        self._known = 0.0

    def know(self, weight: float) -> None:
        """It is a number of samples, which every worker knows."""
        self._known, self._pending = weight, False

    def announce(self, mine: float) -> None:
        """Begin to add up what the shares weigh."""
        self._known, self._pending = mine, self._rope.size > 1
        if self._pending:
            self._gathering = self._rope.start_gather(torch.tensor([mine], dtype=torch.float64))

    def total(self) -> float | None:
        """The sum over all workers; None on a broken rope."""
        if self._pending:
            parts = None if self._gathering is None else self._rope.gathered(self._gathering)
            if parts is None:
                return None
            self._known, self._pending = float(sum(parts)), False
        return self._known
