"""`cordee.gather`: the rows of the whole global batch, for losses that compare samples with each other.

Every worker puts its rows at their positions in the global batch and zeros elsewhere; the sum over the workers is the
whole. The backward pass is the true adjoint: the gradients that all workers' losses have with respect to the whole,
each weighted as its loss is, are added up, and every worker takes its own rows out of the sum. So it does not matter
whether the workers' losses are equal, or what else they depend on.

Cost: two sums of the gathered tensor per step (forward and backward), and the memory of the whole tensor.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cordee.core.errors import UsageError
from cordee.feed.feeder import Feeder
from cordee.group.comm import Comm
from cordee.sync.batchnorm import StepState

_calls = 0
_walks: list[tuple[Feeder, StepState]] = []
"""The walks through global batches that go on now; a gather belongs to the last."""


@contextmanager
def gathering(feeder: Feeder, state: StepState) -> Iterator[None]:
    """In here, `gather` collects over the batches of `feeder`, whose steps have this state; it is closed at the end."""
    walk = (feeder, state)
    _walks.append(walk)
    try:
        yield
    finally:
        _walks.remove(walk)
        feeder.close()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def gather(tensor: Tensor) -> Tensor:
    """The rows of `tensor` of all workers, in the order of the global batch; differentiable, the same on every worker.

    `tensor` has one row for each sample of the worker's share: `(len(batch), ...)`, of any type. The result has one for
    each sample of the global batch. A loss of the gathered rows then is, with its gradient, the loss of one process
    that computes the whole batch. All workers have to call it alike. Outside a step, and on one worker, `tensor` comes
    back unchanged. Not with `accumulate`, `exact` or `sync=local` in the plan: there no forward pass sees the whole
    batch.
    """
    global _calls
    _calls += 1
    walk, state = _walks[-1] if _walks else (None, None)
    if walk is None or state is None or walk.batch is None:
        return tensor
    _check(tensor, walk)
    if walk.team.shares == 1:
        return tensor
    _agree(tensor, walk.team.layers, state)
    size, positions = walk.order.size(walk.batch.step), torch.as_tensor(walk.batch.positions, dtype=torch.int64)
    result: Tensor = _Gather.apply(tensor, walk.team.layers, state, size, positions)  # type: ignore[no-untyped-call]
    return result


def count_calls() -> int:
    """How often this process has called `gather`: the preflight asks whether an objective does."""
    return _calls


def _check(tensor: Tensor, walk: Feeder) -> None:
    if walk.whole:
        raise UsageError(
            "cordee.gather needs the whole global batch in one forward pass, but the plan says exact=true, which "
            "computes it in pieces: leave exact=true out"
        )
    if walk.accumulate > 1:
        raise UsageError(
            "cordee.gather needs the whole global batch in one forward pass, but the plan says "
            f"accumulate={walk.accumulate}, which computes it in parts: leave accumulate out"
        )
    if walk.in_parts:
        raise UsageError(
            "cordee.gather needs the whole global batch, but with sync=local workers compute parts of different steps "
            "at the same time: use sync=allreduce for a loss that compares samples"
        )
    assert walk.batch is not None
    if not tensor.dim() or len(tensor) != len(walk.batch):
        raise UsageError(
            f"cordee.gather was given {tuple(tensor.shape)} for a share of {len(walk.batch)} samples: it needs one row "
            "per sample. Gather several views of the samples one by one: "
            "`first, second = (cordee.gather(view) for view in z.chunk(2))`"
        )


def _agree(tensor: Tensor, comm: Comm, state: StepState) -> None:
    """All workers have to gather rows of one kind: raises on all of them if they do not."""
    back = tensor.requires_grad and torch.is_grad_enabled()
    words = f"rows of shape {tuple(tensor.shape[1:])}, {tensor.dtype}, {'with' if back else 'without'} gradient"
    marks = None if state.void else comm.gather(torch.tensor([zlib.crc32(words.encode())])).wait()
    if marks is None:
        state.void = True
    elif any(not torch.equal(mark, marks[0]) for mark in marks):
        raise UsageError(f"cordee.gather was not given the same on all workers: here {words}")


class _Gather(torch.autograd.Function):
    """Rows of a share to rows of the global batch; and of their gradients the sum over all workers' losses."""

    meets = True

    @staticmethod
    def forward(ctx: Any, rows: Tensor, comm: Comm, state: StepState, size: int, positions: Tensor) -> Tensor:
        """`positions`: where the rows of this worker lie in the global batch, which has `size` of them."""
        ctx.comm, ctx.state, ctx.positions, ctx.rows = comm, state, positions, len(rows)
        ctx.output = torch.Size((size, *rows.shape[1:])), rows.dtype, rows.device
        if rows.numel() == 0:
            return rows.new_empty((size, *rows.shape[1:]))
        whole = torch.zeros((size, *rows.shape[1:]), dtype=rows.dtype)
        if len(positions):
            whole[positions] = rows.detach().cpu()
        # As bytes: zeros added to them change nothing, whatever they mean.
        if state.void or not comm.sum(whole.view(-1).view(torch.uint8)).wait():
            state.void = True  # any finite numbers will do until the step is done again
            return rows.detach()[torch.arange(size, device=rows.device) % len(rows)]
        return whole.to(rows.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        half = gradient.dtype in (torch.float16, torch.bfloat16)
        whole = gradient.detach().to("cpu", torch.float32 if half else gradient.dtype, copy=True).contiguous()
        if ctx.state.silent:  # its loss weighs nothing, not even where its gradient is NaN
            whole.zero_()
        if whole.numel():
            flat = torch.view_as_real(whole) if whole.is_complex() else whole
            ctx.state.void = ctx.state.void or not ctx.comm.sum(flat).wait()
        mine = torch.zeros((ctx.rows, *whole.shape[1:]), dtype=whole.dtype)
        if len(ctx.positions):
            mine = whole[ctx.positions]
        return mine.to(gradient), None, None, None, None
