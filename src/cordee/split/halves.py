"""A backward pass in two halves, inputs first: the first half by torch's function for pipelines, the second our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge


def backward_to_inputs(
    roots: list[Tensor], gradients: list[Tensor], inputs: list[Tensor], parameters: Sequence[Any]
) -> Callable[[], None]:
    """Add the gradients of `inputs`; what is returned adds those of `parameters`, once."""
    # Private, but nothing public computes these halves without computing the first of them twice.
    from torch.distributed.pipelining._backward import stage_backward_input

    pairs = [(root, gradient, _depends(root, inputs)) for root, gradient in zip(roots, gradients, strict=True)]
    on_inputs = [(root, gradient) for root, gradient, depends in pairs if depends]
    # A learned tensor that the stage hands on, by itself: torch's groups hold only what meets an input on the way.
    others = [(root, gradient) for root, gradient, depends in pairs if not depends]
    starts, given = ([pair[at] for pair in on_inputs] for at in (0, 1))
    groups = _joined(stage_backward_input(starts, given, inputs, iter(parameters))[1])

    def add_weights() -> None:
        learnt = [one for one in parameters if one.requires_grad]
        for root, gradient in others:  # groups may need the graph below it
            _add(learnt, torch.autograd.grad(root, learnt, gradient, retain_graph=True, allow_unused=True))
        for group in groups:
            _add_weights_of(**group)

    return add_weights


def _depends(root: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Whether the graph leads from a result back to one of these leaves."""
    leaves, seen, ahead = {id(one) for one in inputs}, set(), [root.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if id(getattr(node, "variable", None)) in leaves:
            return True
        seen.add(node)
        ahead += [before for before, _ in node.next_functions]
    return False


def _joined(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups of torch's backward pass in halves, of which those that have a node of the graph in common become one.

    Torch leaves them apart, by the order of a set of nodes, where a parameter is used twice in a stage and one of the
    nodes that use it uses another parameter too: a layer with a bias whose weight is also used elsewhere. The second
    of them would go through nodes whose tensors are freed, or count gradients twice (as pytorch/pytorch#180952 does).
    """
    joined: list[dict[str, Any]] = []
    for group in groups:
        nodes, gradients, params = list(group["intermediates"]), list(group["grads"]), set(group["params"])
        for other in [one for one in joined if not {*one["nodes"]}.isdisjoint(nodes)]:
            joined.remove(other)
            params |= other["params"]
            for node, gradient in zip(other["nodes"], other["gradients"], strict=True):
                if node not in nodes:
                    nodes.append(node)
                    gradients.append(gradient)
        joined.append({"params": params, "nodes": nodes, "gradients": gradients})
    return joined


def _add_weights_of(params: Iterable[Any], nodes: Sequence[Any], gradients: Sequence[Sequence[Tensor | None]]) -> None:
    """Add the gradients of one group, from those that came to its nodes in the first half.

    torch's own function counts a weight twice that is used before and behind another use of it, in versions that lack
    the fix of pytorch/pytorch#180952. Here each node keeps what came to it, whatever comes from others.
    """
    came = [(node, each) for node, each in zip(nodes, gradients, strict=True)]
    edges = [(GradientEdge(node, at), one) for node, each in came for at, one in enumerate(each) if one is not None]
    if not edges:
        return
    starts, given = [edge for edge, _ in edges], [one for _, one in edges]
    learnt = [node.variable for node in params]
    with ExitStack() as stack:
        for node, each in came:
            stack.callback(node.register_prehook(lambda _, each=each: each).remove)
        _add(learnt, torch.autograd.grad(starts, [GradientEdge(node, 0) for node in params], given))


def _add(parameters: Sequence[Any], gradients: Sequence[Tensor | None]) -> None:
    for one, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            if one.grad is None:  # two parameters may be given one tensor, and it may lie otherwise than they do
                one.grad = torch.empty_like(one).copy_(gradient)
            else:
                one.grad += gradient
