"""Sums over several hosts, many under way at once and some read late: `hosted_sums.py HOMES [flat]`.

Ends with an error if one is wrong, if two ranks have other bits, or the same sum has other bits when it is repeated.
"""

from __future__ import annotations

import sys
import time

import hosted
import torch
from torch import Tensor

import cordee
from cordee.group.transport.hierarchy import Hierarchy, HierarchyWork
from cordee.train.session import stepper_of

SIZES = (16_384, 1_000, 100, 70_001, 7, 3_333)
"""Of numbers; those of less than `hosted.LEAST_BYTES` go around the ring of all ranks."""
KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)


def content(size: int, kind: torch.dtype, seed: int, rank: int) -> Tensor:
    drawn = torch.rand(size, generator=torch.Generator().manual_seed(100 * seed + rank), dtype=torch.float64)
    return (100 * drawn).to(kind)


hosted.live(sys.argv[1])
with cordee.session() as s, torch.inference_mode(s.rank == 1):
    team = stepper_of(s).team
    carriers = [one for one in team.sums.transports if isinstance(one, Hierarchy)]
    assert len(carriers) == ("flat" not in sys.argv)
    carried, before = 0, torch.empty(0)
    for turn in range(24):
        kinds = [KINDS[(turn // 2 + place) % len(KINDS)] for place in range(len(SIZES))]
        seeds = [turn // 2 * len(SIZES) + place for place in range(len(SIZES))]  # each turn twice
        given = [content(*one, s.rank) for one in zip(SIZES, kinds, seeds, strict=True)]
        handles = [team.sums.sum(one) for one in given]
        carried += sum(isinstance(handle._work, HierarchyWork) for handle in handles)
        if turn % 6 == s.rank:
            time.sleep(0.02)  # the others go on meanwhile, and this rank's thread with them
        order = range(len(SIZES)) if turn % 2 else reversed(range(len(SIZES)))
        for place in order:
            assert handles[place].wait()
        for one, size, kind, seed in zip(given, SIZES, kinds, seeds, strict=True):
            total = sum(content(size, kind, seed, rank).double() for rank in range(s.size))
            rounding = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-6}.get(kind, 1e-15)
            torch.testing.assert_close(one.double(), total, rtol=rounding, atol=0)
        bits = torch.cat([one.view(torch.uint8) for one in given])
        parts = team.layers.gather(bits).wait()
        assert parts is not None and all(torch.equal(part, bits) for part in parts), turn
        if turn % 2:
            assert torch.equal(bits, before), f"turn {turn} adds up otherwise than the same turn did before"
        before = bits
    assert (carried > 0) == ("flat" not in sys.argv), carried
