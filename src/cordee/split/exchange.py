"""How FSDP2 gathers parameters and adds up gradients: over the connections of the run, in place of torch's own.

So what travels is counted, goes through shared memory within a host, and nothing hangs or is raised when a worker is
lost: its step is void. gloo adds up whole gradients for a reduce-scatter too, but copies them first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cordee.core.errors import CordeeError, ModelError
from cordee.group.comm import Handle
from cordee.group.team import Team

PIECE = 4 * 2**20
"""Bytes that travel at once: what goes through shared memory has to fit there."""


class _Exchange:
    """What FSDP2 asks of its communication."""

    def __init__(self, team: Team) -> None:
        """Among the shards of this worker's replica."""
        self._team = team

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is exchanged."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _await(self, handles: Sequence[Handle], result: Tensor) -> None:
        """The `result`; zeros if a worker was lost: of this replica, then it is left for good."""
        try:
            ended = [handle.wait() for handle in handles]  # all of them, whatever the first says
        except CordeeError as error:
            if "began another collective" in str(error):
                raise ModelError(
                    "workers computed different layers in one step, but shard= needs all of them to use the same: "
                    "which layers are used must not depend on the samples of a share. Leave shard= out of the plan, or "
                    f"let the loss depend on every layer, if only by 0.0 * layer(x).sum() ({error})"
                ) from error
            raise
        if not all(ended):
            self._team.lines.leave_if_broken()
            result.zero_()


class Gather(_Exchange):
    """Gathers the parameters of a unit."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: object, async_op: bool = False) -> None:
        """Each shard's input, one behind the other, in the output."""
        comm, length = self._team.lines.shards, PIECE // input_tensor.element_size()
        parts = output_tensor.view(comm.size, -1)
        pieces = zip(torch.split(input_tensor, length), torch.split(parts, length, dim=1), strict=True)
        self._await([comm.gather_into(piece, list(rows)) for piece, rows in pieces], output_tensor)


class ScatterSum(_Exchange):
    """Adds up the gradients of a unit."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: object, op: object, async_op: bool = False
    ) -> None:
        """This shard's part of the sum of all inputs, which are used up."""
        comm = self._team.lines.shards
        flat = input_tensor.view(-1)
        self._await([comm.sum(piece) for piece in torch.split(flat, PIECE // flat.element_size())], flat)
        output_tensor.copy_(flat.view(comm.size, -1)[comm.rank].view_as(output_tensor))
