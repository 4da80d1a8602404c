"""Where the backward pass of one share meets that of the others, and how an empty share takes part in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.checkpoint import CheckpointFunction

from cordee.core.errors import ModelError


def meeting_points(loss: Tensor) -> list[GradientEdge]:
    """Where the backward pass of `loss` meets that of other shares: what is computed over the global batch.

    Behind them the samples of a share have gradients though its loss has none. Checkpointed activations may hide such
    layers, which are computed anew in the backward pass.
    """
    found, seen, ahead = [], set(), [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = getattr(node, "_forward_cls", None)
        if getattr(kind, "meets", False) or kind is CheckpointFunction:
            found.append(GradientEdge(node, 0))
        ahead += [following for following, _ in node.next_functions]
    return found


def backward_from(points: Sequence[GradientEdge], outputs: Sequence[tuple[GradientEdge, Tensor]] = ()) -> None:
    """The backward pass of a share whose loss weighs nothing: what other shares' losses say of its samples.

    It begins behind the loss, whose own gradient may be NaN (0/0, a mean over nothing). With `outputs` of models, and
    zeros for each, it goes through all of these models.
    """
    edges = [*points, *(edge for edge, _ in outputs)]
    torch.autograd.backward(edges, [*(_nothing(point) for point in points), *(nought for _, nought in outputs)])


def output_like(output: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    """What a function of ours keeps as `ctx.output`: torch before 2.12 does not tell it of functions in Python."""
    return output.shape, output.dtype, output.device


def _nothing(point: GradientEdge) -> Tensor:
    """A gradient of zeros for the output of a node."""
    kept = getattr(point.node, "output", None)
    if kept is None:
        try:
            output = point.node._input_metadata[0]
        except RuntimeError as error:
            raise ModelError(
                "this version of torch cannot go back through reentrant checkpointing for a share without samples: use "
                "checkpoint(..., use_reentrant=False), or torch 2.12 or later"
            ) from error
        kept = output.shape, output.dtype, output.device
    shape, dtype, device = kept
    return torch.zeros(shape, dtype=dtype, device=device)
