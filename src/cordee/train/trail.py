"""The updates of a step that has several: a step is all or nothing, though each update is an agreement of its own.

When a peer is lost after the first update of a step, that update is committed everywhere and stays. But the step is
computed again, newly shared, and its code must see what it saw then: the parameters and buffers before each update. So
they are kept, swapped back when the step is void, and swapped in again as the code comes to the updates that were made.

Memory: the parameters of every update of a step but the last. Nothing is kept where steps have one update, or alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cordee.core.errors import WorkersLost
from cordee.train.buffers import Buffers, Snapshot


class Trail:
    """What parameters and buffers were around each update of the open step."""

    def __init__(self, buffers: Buffers) -> None:
        """No update was made yet."""
        self._buffers = buffers
        self.most: int | None = None
        """The most updates that a step has had; None: not known yet, so that everything is kept."""
        self.least = 1
        """As many are expected, though no step has had them yet."""
        self._marks: list[list[tuple[nn.Parameter, Tensor]] | None] = []
        """For each update: its parameters as they were on the other side of it; None if that was not kept."""
        self._after: list[Snapshot] = []
        """For each update that was kept: the buffers after it."""
        self._applied = 0
        """How many of these updates the parameters have now."""

    def begin(self) -> None:
        """A new step begins."""
        if self._marks:
            self.most = max(self.most or 0, len(self._marks))
            self._marks, self._after, self._applied = [], [], 0

    def before(self, parameters: Sequence[nn.Parameter], *, alone: bool) -> None:
        """An update of these parameters follows."""
        keep = not alone and (self.most is None or len(self._marks) + 1 < max(self.most, self.least))
        self._marks.append([(one, one.detach().clone()) for one in parameters] if keep else None)

    def after(self) -> None:
        """It was made."""
        self._after.append({} if self._marks[-1] is None else self._buffers.snapshot())
        self._applied += 1

    def back(self) -> None:
        """The step is void: parameters and buffers are those before its first update again."""
        if None in self._marks[: self._applied]:
            raise WorkersLost(
                f"a worker was lost after {self._applied} of the updates of one step, where no step before had more: "
                "what the parameters were before them was not kept, so the step cannot be computed again. Start again, "
                "or go on from what you saved. From the first step of a loop on, as many updates are kept as its "
                "steps were seen to have"
            )
        for mark in reversed(self._marks[: self._applied]):
            _swap(mark)
        self._applied = 0
        self._buffers.bring_back()

    def again(self) -> None:
        """The code comes to an update that was made before the step was void."""
        _swap(self._marks[self._applied])
        self._buffers.bring_back(self._after[self._applied])
        self._applied += 1


@torch.no_grad()
def _swap(mark: list[tuple[nn.Parameter, Tensor]] | None) -> None:
    """Exchange an update's parameters with what they were on its other side; in reverse order, all fits."""
    assert mark is not None
    for place, (parameter, kept) in enumerate(mark):
        now = parameter.detach().clone()
        parameter.copy_(kept)
        mark[place] = (parameter, now)
