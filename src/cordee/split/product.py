"""A product of two matrices, computed by all workers of a session together."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cordee.core.errors import UsageError
from cordee.core.words import did_you_mean
from cordee.group.team import Team

CUTS = ("columns", "rows", "blocks")
_sessions: list[tuple[Team, str]] = []
"""The teams of open sessions, and why they cannot share a product; a product belongs to the last."""


class Product(NamedTuple):
    """A product of two matrices, and what it took."""

    value: Tensor
    """The product, the same on every worker; differentiable."""
    bytes_sent: int
    """What this worker has sent to others for it."""


@contextmanager
def sharing(team: Team, why_not: str = "") -> Iterator[None]:
    """In here products are shared out over the workers of `team`, unless there is a reason why not."""
    _sessions.append((team, why_not))
    try:
        yield
    finally:
        _sessions.remove((team, why_not))


def matmul(a: Tensor, b: Tensor, *, cut: str = "columns") -> Product:
    """`a @ b`, of which each worker of the session computes a part; every worker gives the same two matrices.

    `cut` says how the work is divided. `columns`: each worker takes some columns of `a` and the same rows of `b`; what
    they compute is added up. `rows`: some rows of `a` and all of `b`. `blocks`: some rows of `a` and some columns of
    `b`. The rows or blocks are then assembled. Any sizes fit any number of workers. All workers have to call it alike,
    in a loop over batches in every pass. If one is lost, the others compute its part. The backward pass is local: each
    worker has both matrices. Outside a session, and on one worker, it is `a @ b`.
    """
    if cut not in CUTS:
        hint = did_you_mean(cut, CUTS, "{!r}")
        raise UsageError(f"cordee.split.matmul: cut={cut!r}, expected one of {', '.join(CUTS)}.{hint}")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise UsageError(
            f"cordee.split.matmul was given {tuple(a.shape)} of {a.dtype} and {tuple(b.shape)} of {b.dtype}: expected "
            "two matrices of one type, the first with as many columns as the second has rows"
        )
    team, why_not = _sessions[-1] if _sessions else (Team(), "")
    if team.shares == 1:
        return Product(a @ b, 0)
    if why_not:
        raise UsageError(f"cordee.split.matmul needs all workers at the same time, but {why_not}")
    before = team.meter.bytes_sent
    _check_alike(team, f"{tuple(a.shape)} @ {tuple(b.shape)} of {a.dtype}, cut={cut!r}")
    value: Tensor = _Product.apply(a, b, cut, team)  # type: ignore[no-untyped-call]
    return Product(value, team.meter.bytes_sent - before)


class Part(NamedTuple):
    """What one worker computes: some rows of `a`, some columns of `b`, and of the sums between them some terms."""

    rows: slice
    terms: slice
    columns: slice


def part_of(sizes: tuple[int, int, int], cut: str, place: int, count: int) -> Part:
    """The part of one of `count` workers, for (rows of `a`, columns of `a`, columns of `b`)."""
    height = {"columns": 1, "rows": count, "blocks": _height(count)}[cut]
    width = count // height if cut == "blocks" else 1
    terms = count if cut == "columns" else 1
    row, column = divmod(place, width) if cut != "columns" else (0, 0)
    return Part(
        _stretch(sizes[0], row, height),
        _stretch(sizes[1], place if cut == "columns" else 0, terms),
        _stretch(sizes[2], column, width),
    )


def _height(count: int) -> int:
    """The number of rows of a grid of `count` blocks that is as square as can be."""
    return next(one for one in range(math.isqrt(count), 0, -1) if count % one == 0)


def _stretch(size: int, place: int, count: int) -> slice:
    return slice(size * place // count, size * (place + 1) // count)


def _check_alike(team: Team, words: str) -> None:
    """All workers have to multiply matrices of one kind: raises on all of them if they do not."""
    while True:
        marks = torch.zeros(team.shares, dtype=torch.int64)
        marks[team.share] = zlib.crc32(words.encode())
        if team.agree([marks]):
            break
    if len(set(marks.tolist())) > 1:
        raise UsageError(f"cordee.split.matmul was not given the same on all workers: here {words}")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, cut: str, team: Team) -> Tensor:
        ctx.save_for_backward(a, b)
        while True:  # until no worker is lost meanwhile
            whole = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
            part = part_of((*a.shape, b.shape[1]), cut, team.share, team.shares)
            whole[part.rows, part.columns] = (a[part.rows, part.terms] @ b[part.terms, part.columns]).cpu()
            if team.agree([whole]):
                return whole.to(a.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return gradients[0] @ b.mH if wanted[0] else None, a.mH @ gradients[0] if wanted[1] else None, None, None
