"""Shares: whatever the rule, every position is someone's, once."""

from __future__ import annotations

import numpy as np
import pytest

from cordee.feed.share import Share, Shares

SHARES = [
    Share(),
    Share("proportional", (5, 3, 2)),
    Share("proportional", (0, 1)),
    Share("sampled", seed=3),
    Share("sampled", (1, 0, 3)),
]


def sizes_of(share: Share, size: int, workers: tuple[int, ...], key: tuple[int, ...] = ()) -> list[int]:
    return [len(share.positions(size, workers, index, key)) for index in range(len(workers))]


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 2, 13, 1003])
@pytest.mark.parametrize("workers", [(0,), (0, 1, 2), (4, 2), (1, 3, 5, 6, 7)], ids=str)
def test_every_position_once(share: Share, size: int, workers: tuple[int, ...]) -> None:
    parts = [np.asarray(share.positions(size, workers, index, (1, 2)), dtype=np.int64) for index in range(len(workers))]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(size))


def test_equal_shares_differ_by_at_most_one() -> None:
    assert sizes_of(Share(), 10, (0, 1, 2)) == [4, 3, 3]
    assert sizes_of(Share(), 2, (0, 1, 2)) == [1, 1, 0]
    assert Share().positions(10, (0, 1, 2), 1) == range(4, 7)


@pytest.mark.parametrize(
    ("size", "proportions", "sizes"),
    [
        (10, (1, 1, 1), [4, 3, 3]),
        (1003, (5, 3, 2), [501, 301, 201]),
        (10, (0.1, 0.2, 0.7), [1, 2, 7]),
        (10, (0.9, 0, 0.1), [9, 0, 1]),
    ],
)
def test_proportional_shares_by_largest_remainder(size: int, proportions: tuple, sizes: list[int]) -> None:
    assert sizes_of(Share("proportional", proportions), size, (0, 1, 2)) == sizes


def test_proportions_follow_the_worker_and_not_its_place() -> None:
    share = Share("proportional", (5, 3, 2))
    assert sizes_of(share, 100, (2, 0)) == [29, 71]
    assert sizes_of(share, 100, (1, 2, 9)) == [40, 27, 33]  # a stranger counts as the mean of the two, 2.5


def test_those_who_were_to_get_nothing_take_over_when_they_are_alone() -> None:
    assert sizes_of(Share("proportional", (1, 0, 0)), 5, (1, 2)) == [3, 2]


def test_sampled_owners_are_random_by_key_and_seed_and_even() -> None:
    share = Share("sampled")
    sizes = sizes_of(share, 30_000, (0, 1, 2), (0, 1))
    assert sum(sizes) == 30_000
    assert max(abs(size - 10_000) for size in sizes) < 500
    one = share.positions(100, (0, 1, 2), 0, (0, 1))
    assert np.array_equal(one, Share("sampled").positions(100, (5, 6, 7), 0, (0, 1)))
    assert not np.array_equal(one, share.positions(100, (0, 1, 2), 0, (0, 2)))
    assert not np.array_equal(one, Share("sampled", seed=1).positions(100, (0, 1, 2), 0, (0, 1)))


def test_sampled_owners_by_proportions() -> None:
    sizes = sizes_of(Share("sampled", (0, 3, 1, 0)), 40_000, (0, 1, 2, 3), (7,))
    assert sizes[0] == sizes[3] == 0
    assert abs(sizes[1] - 30_000) < 600


def test_shares_change_at_their_first_step() -> None:
    equal, unequal, other = Share(), Share("proportional", (3, 1)), Share("sampled", seed=2)
    shares = Shares().changed(5, unequal)
    assert [shares.at(step) for step in (0, 4, 5, 99)] == [equal, equal, unequal, unequal]
    assert [shares.unchanged(step, 32) for step in (0, 4, 5)] == [5, 1, 32]
    assert shares.changed(3, other).entries == ((0, equal), (3, other))  # what was to begin later is dropped
    assert shares.changed(9, other).at(8) == unequal
    assert Shares.from_list(shares.to_list()) == shares


def test_a_newcomer_counts_as_the_mean_of_those_that_are_there() -> None:
    """Worker 1 was lost, and worker 3 came."""
    assert Share("proportional", (2.0, 100.0, 4.0)).fractions((0, 2, 3)) == [2 / 9, 4 / 9, 3 / 9]


def test_shares_that_are_over_are_dropped() -> None:
    one, two, three = (Share("proportional", (1.0, part)) for part in (2.0, 3.0, 4.0))
    shares = Shares(((0, one), (5, two)))
    assert shares.changed(9, three, 4).entries == ((0, one), (5, two), (9, three))
    assert shares.changed(9, three, 5).entries == ((5, two), (9, three))
    assert shares.changed(5, three, 4).entries == ((0, one), (5, three))
