"""Sums of many sizes and types, some under way at once, some read late; ends with an error if one of them is wrong."""

from __future__ import annotations

import sys
import time

import torch

import cordee
from cordee.group.transport import shared
from cordee.train.session import stepper_of


def expected(like: torch.Tensor, seed: int, size: int) -> torch.Tensor:
    total = content(like, seed, 0)
    for rank in range(1, size):
        total = total + content(like, seed, rank)
    return total


def content(like: torch.Tensor, seed: int, rank: int) -> torch.Tensor:
    drawn = torch.rand(like.shape, generator=torch.Generator().manual_seed(1000 * seed + rank), dtype=torch.float64)
    return drawn.to(like.dtype) if like.is_floating_point() else (drawn * 100).to(like.dtype)


with cordee.session() as s:
    team = stepper_of(s).team
    posts = 0
    if isinstance(memory := team.sums.transports[0], shared.Shared):
        if "small" in sys.argv:  # so that the arena is written round and round
            memory._arena = shared.MOST_BYTES = 2**20
        post = memory.post

        def counted(tensor: torch.Tensor) -> shared.SharedWork:
            global posts
            posts += 1
            return post(tensor)

        memory.post = counted  # type: ignore[method-assign]
    shapes = [(1,), (3, 5), (40_000,), (0,), (7,), (33_333,)]
    kinds = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16]
    for turn in range(35):  # each kind at each place, and each worker late with each of them
        tensors = [torch.empty(shape, dtype=kinds[(turn + place) % 5]) for place, shape in enumerate(shapes)]
        tensors = [content(one, 10 * turn + place, s.rank) for place, one in enumerate(tensors)]
        handles = [team.sums.sum(one) for one in tensors]
        if turn % 7 == s.rank:
            time.sleep(0.01)  # the others begin to write anew while this one has not read yet
        for place, (one, handle) in enumerate(zip(tensors, handles, strict=True)):
            assert handle.wait()
            over_sockets = "gloo" in sys.argv or one.nbytes * s.size > shared.MOST_BYTES  # in another order: rounding
            total = expected(one, 10 * turn + place, s.size)
            assert torch.equal(one, total) or over_sockets, (turn, place)
            torch.testing.assert_close(one.double(), total.double(), rtol=1e-2, atol=1)
    assert (posts > 0) == ("shared" in sys.argv), posts
    huge = torch.ones(shared.MOST_BYTES // 4 + 1)  # too large to be shared
    assert team.agree([huge]) and float(huge[-1]) == s.size
