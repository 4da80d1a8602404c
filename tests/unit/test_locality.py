"""Locality: which samples of a batch a worker computes; how many is not its affair."""

from __future__ import annotations

import numpy as np
import pytest

from cordee.core.errors import DataError
from cordee.feed.coming import cut_of
from cordee.feed.locality import NOWHERE, Held, Holders, Near, local_owners
from cordee.feed.order import Order
from cordee.feed.share import Share


def at_home(held: Held, workers: np.ndarray) -> int:
    hosts = np.asarray(held.hosts)[workers]
    return int(((held.masks >> np.maximum(hosts, 0)) & (hosts >= 0)).sum())


@pytest.mark.parametrize("seed", range(40))
def test_every_position_once_and_sizes_stay(seed: int) -> None:
    draw = np.random.default_rng(seed)
    hosts = tuple(draw.integers(NOWHERE, 4, draw.integers(1, 7)).tolist())
    masks = draw.integers(0, 16, draw.integers(0, 60)).astype(np.int64)
    cuts = np.sort(draw.integers(0, len(masks) + 1, len(hosts) - 1))
    sizes = np.diff([0, *cuts, len(masks)]).tolist()
    held = Held(masks, hosts)
    workers = local_owners(held, sizes)
    assert np.bincount(workers, minlength=len(hosts)).tolist() == sizes
    in_runs = np.repeat(np.arange(len(hosts)), sizes)
    assert at_home(held, workers) >= at_home(held, in_runs)


def test_with_one_holder_each_nothing_travels_that_could_stay() -> None:
    draw = np.random.default_rng(1)
    for _ in range(50):
        masks = 1 << draw.integers(0, 3, 30).astype(np.int64)
        sizes, hosts = [4, 6, 8, 12], (0, 1, 2, 0)
        held = Held(masks, hosts)
        room = [16, 6, 8]
        best = sum(min(room[host], int((masks == 1 << host).sum())) for host in range(3))
        assert at_home(held, local_owners(held, sizes)) == best


def test_scarce_samples_go_home_before_those_that_all_hold() -> None:
    held = Held(np.array([3, 3, 1, 1], np.int64), (0, 1))
    assert local_owners(held, [2, 2]).tolist() == [1, 1, 0, 0]


def test_ties_go_by_position() -> None:
    held = Held(np.full(6, 3, np.int64), (0, 1))
    assert local_owners(held, [2, 4]).tolist() == [1, 1, 1, 1, 0, 0]
    assert local_owners(Held(np.zeros(4, np.int64), (0, 1)), [1, 3]).tolist() == [0, 1, 1, 1]


def test_holders_know_samples_by_runs() -> None:
    holders = Holders.of([10, 5, 5], {"b": [1, 2], "a": [0, 2]})
    assert holders.hosts == ("a", "b")
    assert holders.of_samples(np.array([0, 9, 10, 14, 15, 19])).tolist() == [1, 1, 2, 2, 3, 3]
    with pytest.raises(DataError, match="host a is to hold run 3, but there are 3"):
        Holders.of([1, 1, 1], {"a": [3]})


def test_shares_by_locality_cover_every_batch_on_any_workers() -> None:
    """Also of a worker on a host that holds nothing, with proportions, and of a choice of samples."""
    holders = Holders.of([50, 50], {"a": [0], "b": [1]})
    order, share = Order(60, 17, seed=2), Share("local", (2.0, 1.0, 1.0))
    rows = np.random.default_rng(0).permutation(100)[:60].astype(np.int64)
    near = Near(holders, ((0, "a"), (1, "b"), (2, "elsewhere")), rows)
    local = 0
    for owners in ((0, 1, 2), (0, 2), (1, 7)):
        for step in range(order.steps):
            whole = order.ids(0, step)
            parts = [np.asarray(cut_of(share, whole, owners, at, (0, step, 0), near)) for at in range(len(owners))]
            assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(whole)))
            plain = Share("proportional", share.proportions)
            assert [len(one) for one in parts] == [
                len(plain.positions(len(whole), owners, at)) for at in range(len(owners))
            ]
            if owners == (0, 1, 2):
                local += sum(int((rows[whole[part]] // 50 == host).sum()) for host, part in enumerate(parts[:2]))
    assert local > 0.9 * 60 * 3 / 4


def test_without_holders_shares_are_consecutive() -> None:
    assert cut_of(Share("local"), np.arange(10), (0, 1), 1, (0, 0, 0), None) == range(5, 10)
