"""A backward pass in two halves, inputs first, by torch's functions for pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def backward_to_inputs(
    roots: list[Tensor], gradients: list[Tensor], inputs: list[Tensor], parameters: Sequence[Any]
) -> Callable[[], None]:
    """Add the gradients of `inputs`; what is returned adds those of `parameters`, once."""
    # Private, but nothing public computes these halves without computing the first of them twice.
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    groups = _joined(stage_backward_input(roots, gradients, inputs, iter(parameters))[1])

    def add_weights() -> None:
        stage_backward_weight(iter(parameters), groups)
        for one in parameters:  # autograd lays a gradient out as its parameter lies, these functions do not
            if one.grad is not None and one.grad.stride() != one.stride():
                one.grad = torch.empty_like(one).copy_(one.grad)

    return add_weights


def _joined(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups of torch's backward pass in halves, of which those that have a node of the graph in common become one.

    Torch leaves them apart, by the order of a set of nodes, where a parameter is used twice in a stage and one of the
    nodes that use it uses another parameter too: a layer with a bias whose weight is also used elsewhere. The second
    of them would go through nodes whose tensors are freed, or count gradients twice (as pytorch/pytorch#180952 does).
    """
    joined: list[dict[str, Any]] = []
    for group in groups:
        nodes, gradients, params = list(group["intermediates"]), list(group["grads"]), set(group["params"])
        for other in [one for one in joined if not {*one["intermediates"]}.isdisjoint(nodes)]:
            joined.remove(other)
            params |= other["params"]
            for node, gradient in zip(other["intermediates"], other["grads"], strict=True):
                if node not in nodes:
                    nodes.append(node)
                    gradients.append(gradient)
        joined.append({"params": params, "intermediates": nodes, "grads": gradients})
    return joined
