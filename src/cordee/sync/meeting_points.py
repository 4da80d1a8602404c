"""Where the backward pass of one share meets that of the others, and how an empty share takes part in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.checkpoint import CheckpointFunction


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


def backward_from(points: Sequence[GradientEdge]) -> None:
    """The backward pass of a share whose loss weighs nothing: what other shares' losses say of its samples.

    It begins behind the loss, whose own gradient may be NaN (0/0, a mean over nothing).
    """
    nothing = []
    for point in points:
        like = point.node._input_metadata[0]  # of the output, whose gradient comes in
        nothing.append(torch.zeros(like.shape, dtype=like.dtype, device=like.device))
    torch.autograd.backward(points, nothing)
