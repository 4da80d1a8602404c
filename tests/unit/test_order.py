"""The order of samples: every one once, at once, evenly spread."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest

from cordee.core.errors import JobError
from cordee.feed.order import Order
from cordee.feed.permute import TABLE_LIMIT, permutation


def epoch_of(order: Order, epoch: int) -> np.ndarray:
    return np.concatenate([order.ids(epoch, step) for step in range(order.steps)])


def deviation(observed: np.ndarray, expected: np.ndarray | float, freedom: int) -> float:
    """How many standard deviations the chi-square sum lies from its mean (cube-root form, good for any freedom)."""
    total = float(((observed - expected) ** 2 / expected).sum())
    return ((total / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


BLOCKS = [
    {"shuffle": "blocks", "block": block, "window": window} for block, window in ((7, 3), (1, 1), (50, 2), (4, 50))
]


@pytest.mark.parametrize("form", [{"shuffle": "full"}, {"shuffle": "none"}, *BLOCKS], ids=str)
def test_every_sample_once_whatever_the_size(form: dict) -> None:
    for samples in [*range(1, 60), 97, 100, 101, 1003]:
        order = Order(samples, batch=max(1, samples // 3), seed=3, **form)
        for epoch in (0, 1):
            assert np.array_equal(np.sort(epoch_of(order, epoch)), np.arange(samples)), (samples, epoch)


@pytest.mark.parametrize("samples", [TABLE_LIMIT - 1, TABLE_LIMIT, TABLE_LIMIT + 1, 70_001, 263_169])
def test_arithmetic_is_one_to_one_around_the_table_limit(samples: int) -> None:
    ids = permutation(samples, "test", 1)(np.arange(samples))
    assert np.array_equal(np.sort(ids), np.arange(samples))


def test_blocks_larger_than_a_table_are_one_to_one_with_a_short_last_block() -> None:
    order = Order(300_001, batch=50_000, shuffle="blocks", block=700, window=150)
    assert np.array_equal(np.sort(epoch_of(order, 2)), np.arange(300_001))


def test_what_whole_blocks_leave_over_is_not_always_the_same() -> None:
    order = Order(1_003, batch=1_000, shuffle="blocks", block=10, window=4)
    assert len(np.unique(np.concatenate([order.ids(epoch, 1) for epoch in range(50)]))) > 30


def test_blocks_stay_together_within_a_window() -> None:
    block, window = 10, 4
    order = Order(1_000, batch=block * window, shuffle="blocks", block=block, window=window)
    for step in range(order.steps):
        assert len(np.unique(order.ids(0, step) // block)) == window
    first = order.ids(0, 0)
    assert not np.array_equal(first, np.sort(first))
    assert not np.array_equal(np.unique(first // block), np.arange(window))


@pytest.mark.parametrize("samples", [1_003, 10**6, 10**12])
@pytest.mark.parametrize("shuffle", ["full", "blocks", "none"])
def test_a_span_is_its_steps_one_after_the_other(samples: int, shuffle: str) -> None:
    order = Order(samples, batch=500, seed=9, shuffle=shuffle)
    steps = range(order.steps - 2, order.steps)
    whole = order.span(4, steps)
    assert whole.dtype == np.int64
    assert np.array_equal(whole, np.concatenate([order.ids(4, step) for step in steps]))
    assert len(order.ids(4, steps[-1])) == order.size(steps[-1])


def test_known_values_do_not_change() -> None:
    """A checkpoint of an older version continues with the same samples: these numbers must never change."""
    assert Order(10, batch=10, seed=1).ids(0, 0).tolist() == KNOWN["table"]
    assert Order(10**12, batch=4, seed=1).ids(2, 7).tolist() == KNOWN["network"]
    assert Order(10**6, batch=4, seed=1, shuffle="blocks").ids(2, 7).tolist() == KNOWN["blocks"]


KNOWN = {
    "table": [0, 6, 9, 4, 1, 5, 7, 2, 3, 8],
    "network": [699198332905, 91987151369, 835624886314, 823597828612],
    "blocks": [31, 427350, 376484, 366054],
}


@pytest.mark.parametrize("samples", [50, 10**9])
def test_seed_and_epoch_change_the_order_and_nothing_else_does(samples: int) -> None:
    first = Order(samples, batch=50, seed=1).ids(0, 0)
    assert not np.array_equal(first, Order(samples, batch=50, seed=2).ids(0, 0))
    assert not np.array_equal(first, Order(samples, batch=50, seed=1).ids(1, 0))
    assert np.array_equal(first, Order(samples, batch=50, seed=np.int64(1)).ids(0, 0))


def test_the_last_batch_is_short_or_dropped_as_asked() -> None:
    kept, dropped = Order(10, batch=4), Order(10, batch=4, drop_last=True)
    assert [kept.size(step) for step in range(kept.steps)] == [4, 4, 2]
    assert [dropped.size(step) for step in range(dropped.steps)] == [4, 4]
    with pytest.raises(IndexError):
        dropped.ids(0, 2)


@pytest.mark.parametrize("shuffle", ["full", "blocks", "none"])
def test_endless_data_runs_on_across_passes(shuffle: str) -> None:
    order = Order(10, batch=4, shuffle=shuffle, block=3, window=2, steps_per_epoch=3)
    stream = np.concatenate([epoch_of(order, epoch) for epoch in range(5)])
    assert len(stream) == 5 * 3 * 4
    for start in range(0, 60, 10):
        assert np.array_equal(np.sort(stream[start : start + 10]), np.arange(10))


def test_an_endless_batch_may_be_larger_than_the_data() -> None:
    ids = Order(3, batch=10, steps_per_epoch=1).ids(0, 0)
    assert np.bincount(ids).sum() == 10
    assert np.bincount(ids).max() == 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch": 0}, "batch=0"),
        ({"samples": 0}, "samples=0"),
        ({"batch": 2.5}, "batch=2.5"),
        ({"shuffle": "ful"}, "shuffle='ful'"),
        ({"block": -1}, "block=-1"),
        ({"steps_per_epoch": 0}, "steps_per_epoch=0"),
        ({"seed": "a"}, "seed='a'"),
        ({"batch": 11, "drop_last": True}, "batch=11"),
    ],
)
def test_a_meaningless_order_is_refused_by_name_and_value(fields: dict, words: str) -> None:
    with pytest.raises(JobError, match=words.replace("(", r"\(")):
        Order(**{"samples": 10, "batch": 2, **fields})


def test_it_describes_itself_in_json_values() -> None:
    order = Order(np.int64(10), batch=4, seed=7, shuffle="blocks")
    described = json.loads(json.dumps(order.describe()))
    form = described.pop("form")
    assert form == 2
    assert Order(**described) == order


def test_memory_does_not_grow_with_the_number_of_samples() -> None:
    order = Order(10**12, batch=10_000)
    tracemalloc.start()
    order.ids(0, 12_345)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("samples", [2, 3, 5, 10, 31, 100])
def test_small_sets_are_spread_evenly_over_epochs(samples: int) -> None:
    epochs = 1_000
    order = Order(samples, batch=samples, seed=5)
    counts = np.zeros((samples, samples))
    for epoch in range(epochs):
        counts[np.arange(samples), order.ids(epoch, 0)] += 1
    # Rows and columns of a permutation each hold one mark, which stretches the sum by n / (n - 1).
    expected = epochs / samples
    shrunk = expected + (counts - expected) * math.sqrt((samples - 1) / samples)
    assert abs(deviation(shrunk, expected, (samples - 1) ** 2)) < 5


@pytest.mark.parametrize("samples", [70_000, 10**6, 10**9, 10**12])
def test_large_sets_are_spread_evenly(samples: int) -> None:
    ids = Order(samples, batch=65_000, seed=5).ids(3, 0)
    bins = np.bincount(ids * 64 // samples, minlength=64)
    if samples >= 10**6:  # of 70,000 nearly all were drawn, and without replacement that is too even for chi-square
        assert abs(deviation(bins, len(ids) / 64, 63)) < 5
    # Distance of neighbours: falls linearly from 0 to n, as for two independent draws.
    edges = np.linspace(0, 1, 33)
    shares = np.diff(2 * edges - edges**2)
    distances = np.histogram(np.abs(np.diff(ids)) / samples, edges)[0]
    assert abs(deviation(distances, shares * (len(ids) - 1), 31)) < 5


def test_one_position_of_a_large_set_is_even_over_epochs() -> None:
    order = Order(10**6, batch=8, seed=5)
    ids = np.stack([order.ids(epoch, 1_000) for epoch in range(1_500)])
    for position in range(8):
        bins = np.bincount(ids[:, position] * 16 // 10**6, minlength=16)
        assert abs(deviation(bins, len(ids) / 16, 15)) < 5
