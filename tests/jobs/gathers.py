"""Gathers of many sizes and types, some left open, some never asked for; ends with an error if one of them is wrong."""

from __future__ import annotations

import sys
import time

import torch

import cordee
from cordee.group.transport import shared
from cordee.train.session import stepper_of

TURNS = 42
"""Each kind at each place, and each worker late with each of them."""


def content(shape: tuple[int, ...], kind: torch.dtype, seed: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return (100 * torch.rand(shape, generator=generator, dtype=torch.float64)).to(kind)


with cordee.session() as s:
    team = stepper_of(s).team
    near, posts = team.layers.transports[0], 0
    assert isinstance(near, shared.Shared) == ("shared" in sys.argv)
    if isinstance(near, shared.Shared):
        if "small" in sys.argv:  # so that the arena is written round and round, and some go over sockets
            near._arena = 2**16
        post = near.post

        def counted(*given: object) -> shared.SharedWork:
            global posts
            posts += 1
            return post(*given)  # type: ignore[arg-type]

        near.post = counted  # type: ignore[method-assign]
    shapes = [(1,), (3, 5), (), (4_000,), (7,), (9_000,), (2, 0)]
    kinds = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16, torch.bool]
    for turn in range(TURNS):
        seed = 100 * turn
        weight = team.layers.gather(content((1,), torch.float64, seed, s.rank))  # open while the others come and go
        team.layers.gather(content((2,), torch.float32, seed, s.rank))  # its result is never asked for
        total = torch.full((300,), float(s.rank + 1))
        sum_of_all = team.sums.sum(total) if s.rank % 2 else None  # the sums have an order of their own
        for place, shape in enumerate(shapes):
            kind = kinds[(turn + place) % len(kinds)]
            if turn % 7 == s.rank:
                time.sleep(0.001)
            parts = team.layers.gather(content(shape, kind, seed + place, s.rank)).wait()
            assert parts is not None and len(parts) == s.size
            for rank, part in enumerate(parts):
                assert part.dtype == kind and torch.equal(part, content(shape, kind, seed + place, rank)), (turn, place)
        assert (sum_of_all or team.sums.sum(total)).wait() and float(total[0]) == s.size * (s.size + 1) / 2
        weights = weight.wait()
        assert weights is not None
        assert all(torch.equal(one, content((1,), torch.float64, seed, rank)) for rank, one in enumerate(weights))
    whole = TURNS * (2 + len(shapes))
    assert {"gloo": posts == 0, "small": 0 < posts < whole, "large": posts == whole}[sys.argv[-1]], posts
