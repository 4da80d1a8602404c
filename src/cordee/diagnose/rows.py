"""Whether a buffer follows its batch by a mean: tried on a module alone, with what it was called with in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    rows = next((len(one) for call in calls for one in _tensors(call) if one.dim()), 0)
    if rows < 2:
        return False
    cut = max(1, rows // 3)

    def after(start: int, stop: int) -> Tensor:
        restore()
        for args, kwargs in calls:
            args, kwargs = map_tensors(lambda one: _part(one, rows, start, stop), (args, kwargs))
            module(*args, **kwargs)
        buffer = module._buffers[name]
        assert buffer is not None
        return buffer.clone()

    try:
        with _quiet(module), torch.random.fork_rng():
            whole, one, other = after(0, rows), after(0, cut), after(cut, rows)
            restore()
            before = module._buffers[name]
            assert before is not None
    except Exception:  # it needs more than its arguments, or cannot take fewer rows
        return False
    if torch.equal(whole, before):  # something else changes it
        return False
    if not (whole.is_floating_point() or whole.is_complex()):
        return torch.equal(before.long() + (one.long() - before.long()) + (other.long() - before.long()), whole.long())
    mean = (one * cut + other * (rows - cut)) / rows
    noise = 32 * torch.finfo(whole.dtype).eps * float(whole.abs().max())
    return float((mean - whole).abs().max()) <= TOLERANCE * float((whole - before).abs().max()) + noise


@contextmanager
def _quiet(module: nn.Module) -> Iterator[None]:
    """Layers that draw, or look at their batch in a way of their own, are set aside in here."""
    aside = [one for one in module.modules() if isinstance(one, _BatchNorm | _DropoutNd) and one.training]
    for one in aside:
        one.training = False
    try:
        yield
    finally:
        for one in aside:
            one.training = True


def _tensors(call: Call) -> list[Tensor]:
    args, kwargs = call
    return [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]


def _part(tensor: Tensor, rows: int, start: int, stop: int) -> Tensor:
    return tensor[start:stop] if tensor.dim() and len(tensor) == rows else tensor
