"""Losses that divide by something else than samples: cross-entropy with ignored targets or class weights.

All of them end in torch's `nll_loss`, which says what it divided by. That is read off every call, and so is the line
that declares it; both are only believed where interaction and replay agree with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cordee.feed.batch import Batch
from cordee.feed.fields import named_tensors

_MEAN = 1  # as torch counts reductions
DEFAULT_IGNORED = -100
MOST_WEIGHTS = 100_000
MOST_TELLING = 16


@dataclass(frozen=True)
class Call:
    """One call of `nll_loss` with a mean: what it ignores, the weights of classes, and what it divided by."""

    ignored: int
    weights: tuple[float, ...] | None
    """None: all classes weigh the same."""
    total: float
    """The weight of all targets that count."""
    targets: int
    uneven: bool
    """Whether these targets weigh differently, so that the tests see what that does."""

    @property
    def telling_values(self) -> tuple[int, ...]:
        """Targets that make a difference: the ignored one, and one class of every weight, up to some."""
        if self.weights is None:
            return (self.ignored,)
        classes = {weight: place for place, weight in enumerate(self.weights)}
        return (self.ignored, *(classes[weight] for weight in sorted(classes, reverse=True)[:MOST_TELLING]))


def loss_call(given: Mapping[str, Any], result: Any) -> Call | None:
    """What a call of `nll_loss_forward` or `nll_loss2d_forward` with these arguments tells; None for anything else."""
    if "grad_output" in given or given["reduction"] != _MEAN or not isinstance(result, tuple):
        return None
    weight, target, ignored = given["weight"], given["target"], given["ignore_index"]
    counted = target[target != ignored]
    weights, each = None, counted[:0]
    if isinstance(weight, Tensor) and weight.numel() <= MOST_WEIGHTS and bool((weight != weight.flatten()[0]).any()):
        weights, each = tuple(weight.detach().flatten().tolist()), weight[counted]
    uneven = counted.numel() < target.numel() or bool((each != each[:1]).any())
    return Call(int(ignored), weights, float(result[1]), target.numel(), uneven)


def lines_to_add(call: Call, batch: Batch) -> Iterator[tuple[str, float]]:
    """Ways to declare what a call divides by, each with what it comes to for this batch."""
    for name, tensor in named_tensors(batch.fields):
        if tensor.is_floating_point() or tensor.is_complex() or not tensor.dim():
            continue
        spelt = _spelt(name)
        for target_line, target in ((spelt, tensor), (f"{spelt}[:, 1:]", tensor[:, 1:] if tensor.dim() > 1 else None)):
            if target is None:
                continue
            counted = target != call.ignored
            if call.weights is None:
                yield f"({target_line} != {call.ignored}).sum()", float(counted.sum())
                continue
            inside = target[counted]
            if inside.numel() and (int(inside.min()) < 0 or int(inside.max()) >= len(call.weights)):
                continue
            table = torch.tensor(call.weights, dtype=torch.float64, device=target.device)
            all_count = bool(counted.all()) or (call.ignored == DEFAULT_IGNORED and bool((target >= 0).all()))
            chosen = target_line if all_count else f"{target_line}[{target_line} != {call.ignored}]"
            yield f"weights[{chosen}].sum()", float(table[inside.long()].sum())


def _spelt(name: str) -> str:
    """How a field of a batch is written."""
    if name in ("x", "y"):
        return f"batch.{name}"
    if name.startswith("field "):
        place = int(name.split()[1])
        return ("batch.x", "batch.y")[place] if place < 2 else f"batch.fields[{place}]"
    return "batch.fields" + "".join(f"[{int(part)}]" if part.isdigit() else f'["{part}"]' for part in name.split("."))
