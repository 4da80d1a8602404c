"""Whether a buffer follows its batch by a mean: tried on a module alone, with what it was called with in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from cordee.feed.source import map_tensors

Call = tuple[Any, Any]
"""Arguments by place and by name."""
TOLERANCE = 1e-4
"""Of the change that a buffer has made."""


@torch.no_grad()
def follows_its_rows(module: nn.Module, name: str, calls: Sequence[Call], restore: Callable[[], None]) -> bool:
    """Whether the buffer `name` is, after `calls`, the mean over two parts of the rows; a count: their sum.

    `restore` makes all buffers those before the calls. What cannot be computed again is not said to follow.
    """
    given = [one for args, kwargs in calls for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
    rows = next((len(one) for one in given if one.dim()), 0)
    if rows < 2:
        return False
    cut = max(1, rows // 3)

    def after(start: int, stop: int) -> Tensor:
        restore()
        for args, kwargs in calls:
            args, kwargs = map_tensors(
                lambda one: one[start:stop] if one.dim() and len(one) == rows else one, (args, kwargs)
            )
            module(*args, **kwargs)
        buffer = module._buffers[name]
        assert buffer is not None
        return buffer.clone()

    try:
        with ExitStack() as stack, torch.random.fork_rng():
            for one in module.modules():  # that draw, or look at their batch in a way of their own
                if isinstance(one, _BatchNorm | _DropoutNd):
                    stack.callback(setattr, one, "training", one.training)
                    one.training = False
            whole, first, second = after(0, rows), after(0, cut), after(cut, rows)
            restore()
            before = module._buffers[name]
            assert before is not None
    except Exception:  # it needs more than its arguments, or cannot take fewer rows
        return False
    if torch.equal(whole, before):  # something else changes it
        return False
    if not (whole.is_floating_point() or whole.is_complex()):
        return torch.equal(first.long() + second.long() - before.long(), whole.long())
    mean = (first * cut + second * (rows - cut)) / rows
    noise = 32 * torch.finfo(whole.dtype).eps * float(whole.abs().max())
    return float((mean - whole).abs().max()) <= TOLERANCE * float((whole - before).abs().max()) + noise
