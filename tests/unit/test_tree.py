"""The fixed tree over the pieces of a batch: the same bits whoever has which of them."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cordee.core.errors import UsageError
from cordee.feed.share import Share
from cordee.sync.pieces import NOTHING, Pieces
from cordee.sync.tree import Node, fold, roots, roots_of, total


def summed(values: list[Tensor], owners: tuple[int, ...], workers: int) -> Tensor:
    """What all workers come to, if each folds what it has and all fold what is left."""
    count, left = len(values), {}
    for worker in range(workers):
        own = {Node(0, piece): values[piece] for piece in range(count) if owners[piece] == worker}
        fold(own, count, torch.add)
        assert sorted(own) == list(roots_of(owners, workers)[worker])
        left.update(own)
    fold(left, count, torch.add)
    (whole,) = left.values()
    return whole


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 11, 16])
def test_the_same_bits_for_every_partition(count: int) -> None:
    draw = np.random.default_rng(count)
    values = [
        torch.from_numpy(draw.normal(size=50).astype(np.float32) * 10.0 ** draw.integers(-4, 4)) for _ in range(count)
    ]
    right = summed(values, (0,) * count, 1)
    for workers in range(1, 8):
        for rule, proportions in (("equal", ()), ("proportional", tuple(range(1, workers + 1))), ("sampled", ())):
            share, owners = Share(rule, proportions, seed=3), [0] * count
            for worker in range(workers):
                for piece in share.positions(count, range(workers), worker, (1, 2, 0)):
                    owners[piece] = worker
            assert torch.equal(summed(values, tuple(owners), workers), right)
    in_turn = list(itertools.accumulate(values))[-1]
    assert count < 5 or not torch.equal(in_turn, right)  # or any order would do
    assert torch.allclose(in_turn, right, rtol=1e-3)


def test_roots_are_few() -> None:
    assert roots(range(8), 8) == [Node(3, 0)]
    assert roots(range(1, 7), 8) == [Node(0, 1), Node(0, 6), Node(1, 1), Node(1, 2)]
    assert roots([4], 5) == [Node(2, 1)]  # what has no neighbour goes up as it is
    assert roots([], 5) == []


def test_totals_are_those_of_the_tree() -> None:
    values = [0.1 * 3**place for place in range(7)]
    right = ((values[0] + values[1]) + (values[2] + values[3])) + ((values[4] + values[5]) + values[6])
    assert total(values) == right
    assert abs(Fraction(total(values)) - sum(map(Fraction, values))) < 1e-12
    assert total([]) == 0.0 and math.copysign(1.0, total([-0.0])) == 1.0


def test_nothing_changes_no_number() -> None:
    numbers = torch.tensor([0.0, -0.0, 1e-45, -1.5, float("inf")])
    assert torch.equal((numbers + NOTHING).view(torch.int32), numbers.view(torch.int32))


def test_pieces_are_put_aside_and_folded() -> None:
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    pieces = Pieces()
    pieces.begin([0, 0, 1], lambda count: [0.0] * count)
    for number, value in ((0, 1.0), (1, 2.0), (None, 8.0)):
        pieces.take(number, 4.0)
        one.grad, other.grad = torch.full((2,), value), torch.ones(1) if number else None
        pieces.end([one, other])
        assert one.grad is None and other.grad is None
    assert pieces.weights == [4.0, 4.0, 0.0]
    assert list(pieces.summed) == [Node(1, 0)]
    assert pieces.summed[Node(1, 0)][one].tolist() == [3.0, 3.0]
    assert pieces.summed[Node(1, 0)][other].tolist() == [1.0]
    pieces.take(2, 1.0)
    table = nn.Embedding(3, 1, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(UsageError, match="leave sparse=True out"):
        pieces.end(table.parameters())
