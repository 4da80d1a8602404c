"""The interface by which replicas agree: one `Sync` for the parameters of each optimizer.

A step calls, in this order: `begin` before each backward pass, `commit` once all its gradients are there, `update` once
it has committed. `forget` takes the place of the last two where a step is void.

In windows (see `cordee.core.window`), `commit` and `update` are called for each part that this replica computes. They
must not wait for other replicas: the record that `commit` returns is this replica's own. When all parts are done,
`barrier` follows. Where that left a merge under way, `begin_merge` follows once all workers have committed the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.record import Record
from cordee.core.window import InHand, Rule
from cordee.sync.gradients import drop

Recorded = Callable[[], Record]
"""Gives this replica's record of the open step, once its gradients are there."""


class Treatment(NamedTuple):
    """What is done to the gradient before the update."""

    scale: float = 1.0
    """The loss was multiplied by it."""
    clip: float | None = None
    """The gradient's norm is bounded by it."""


class Agreed(NamedTuple):
    """What a step has come to."""

    record: Record
    """The sum over all replicas."""
    fits: bool = True
    """Whether the gradient is finite in its number format."""
    norm: Tensor = torch.zeros(())
    """Of the gradient before it was bounded, still on its device: nothing waits for it."""


Kept = dict[str, list[Tensor]]
"""What a `Sync` keeps beside the parameters: by name, a tensor for each of them."""


class Sync:
    """How the replicas agree on the parameters of one optimizer; as it is here, one that sends nothing early."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Keep those that ask for gradients, in the optimizer's order."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.in_hand: InHand | None = None
        """The part that is computed now of a window, which `barrier` will end; None: all compute the same step."""
        self.rule: Rule | None = None
        """How the next steps are shared out in windows, where it is not the plan that says so."""
        self.behind = False
        """Whether the next `barrier` may leave the window's merge under way; set before it, alike on all replicas."""

    @property
    def under_way(self) -> bool:
        """Whether the last `barrier` left a merge to the next one: what a worker lost until then did is done again."""
        return False

    def meet(self) -> None:
        """All replicas have made this one: called by all of them before its first step.

        Not where workers come in, and all make theirs anew without it.
        """

    def begin(self, record: Recorded | None) -> bool:
        """A backward pass follows. With a `record` it is the last of its step: what is complete may be sent meanwhile.

        Without one, more passes follow: what was sent before is taken back. False if a replica was lost.
        """
        return True

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed | None:
        """Agree on the step, all replicas or none, and treat the gradient for its update; None: compute it again.

        `void` says that something this step rests on failed already.
        """
        raise NotImplementedError

    def barrier(self) -> bool:
        """All parts of a window are done: agree on that, all replicas or none; False: one was lost before it.

        Then the parts that are lost with it are done again, and this is called again.
        """
        raise NotImplementedError

    def begin_merge(self) -> None:
        """Begin to send what is `under_way`; all replicas call this at the same place, or none."""

    def update(self, optimizer: Optimizer) -> None:
        """Let the optimizer step; what it does to gradients must not reach a peer that still needs them."""
        optimizer.step()

    def merge(self, *, saving: bool = False) -> Kept:
        """Make the parameters equal on all replicas, before they are measured or saved; all replicas call this.

        When `saving`, what else this keeps from one step to the next: the same on all replicas, whatever their number.
        """
        return {}

    def forget(self, *, passed: bool) -> None:
        """Drop what the step has so far; `passed`: the backward pass after the last `begin` came to its end."""
        drop(self.parameters)

    def close(self) -> None:
        """Remove all hooks: the parameters are agreed on by other means from now on."""
