"""What each unit of a model costs: the time of its forward and backward pass on a small batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cordee.split.record import Call, patched, unchanged
from cordee.split.units import Segment

PASSES, ENOUGH_S = 3, 0.1
"""The fastest of so many counts, after one that warms up; of more, if they take less time than this together."""


def measure(model: nn.Module, run: Callable[[], Any], segments: Sequence[Segment]) -> tuple[float, ...]:
    """Milliseconds of each segment: of what happens between the end of the one before and its own.

    The last one ends with the pass. Where nothing carries gradients, the forward pass alone counts. While other
    processes have the core, it does not count. Gradients of parameters, buffers and random state are as before
    afterwards.
    """
    ends = [segment.calls[-1] for segment in segments[:-1]]
    with unchanged(model):
        _time(model, run, ends)
        passes: list[list[float]] = []
        until = time.perf_counter() + ENOUGH_S
        while len(passes) < PASSES or time.perf_counter() < until:
            passes.append(_time(model, run, ends))
    return tuple(1000 * min(times) for times in zip(*passes, strict=True))


def pass_ms(model: nn.Module, run: Callable[[], Any], cores: float = math.inf) -> float:
    """Milliseconds of a forward and backward pass, by which workers that compute the same are compared.

    While other processes have the core, it does not count. `cores` is how many a quota leaves this worker: the kernel
    lets it use more for a moment, so short passes do not show it.
    """
    passes: list[float] = []
    with unchanged(model):
        _time(model, run, ())
        while len(passes) < PASSES or sum(passes) < ENOUGH_S:
            # Clocks are read in such an order that what happens between two of them makes a pass longer, not shorter.
            began, waited, worked = time.perf_counter(), _waited_for_core(), time.process_time()
            _time(model, run, ())
            worked, waited = time.process_time() - worked, _waited_for_core() - waited
            passes.append(max(time.perf_counter() - began - waited, worked / cores))
    return 1000 * min(passes)


def _waited_for_core() -> float:
    """Seconds for which the main thread could have run, but had no core; 0 where the system does not tell."""
    with suppress(OSError, IndexError):
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _time(model: nn.Module, run: Callable[[], Any], ends: Sequence[Call]) -> list[float]:
    """Seconds of each segment in one pass; `ends` are the last calls of all but the last."""
    names = {call.name: call.module for call in ends}
    forward = [0.0] * (len(ends) + 2)
    backward: dict[int, float] = {}
    waiting = list(enumerate(ends))

    def clock() -> float:
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        return time.perf_counter() - _waited_for_core()

    def noted(place: int) -> Callable[[Tensor], None]:
        return lambda gradient: backward.__setitem__(place, clock())

    def watch(name: str, module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if waiting and waiting[0][1].name == name:
                place, _ = waiting.pop(0)
                forward[place + 1] = clock()
                for leaf in pytree.tree_leaves(result):
                    if isinstance(leaf, Tensor) and leaf.requires_grad:
                        leaf.register_hook(noted(place))  # type: ignore[no-untyped-call]
                        break
            return result

        return timed

    with torch.enable_grad(), patched(names, watch):
        forward[0] = clock()
        result = run()
        forward[-1] = start = clock()
        trained = [one for one in model.parameters() if one.requires_grad]
        root = next(
            (leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad), None
        )
        if root is not None and trained:
            torch.autograd.grad(root.sum(), trained, allow_unused=True)
        last = clock()
    return [
        max(0.0, forward[at + 1] - forward[at]) + _span(backward, at, len(ends), start, last)
        for at in range(len(ends) + 1)
    ]


def _span(backward: dict[int, float], at: int, cuts: int, start: float, last: float) -> float:
    """How long the backward pass was between the cut behind a segment and the one before it."""
    begin = start if at == cuts else backward.get(at)
    if begin is None:
        return 0.0
    return max(0.0, next((backward[one] for one in range(at - 1, -1, -1) if one in backward), last) - begin)
