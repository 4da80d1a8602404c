"""Buffers that are used again: never one that is in use, and idle ones not for ever."""

from __future__ import annotations

import weakref

from cordee.feed.cache.pool import Pool


def test_a_buffer_that_came_back_is_taken_again() -> None:
    pool = Pool(threshold=100)
    first, second = pool.take(40), pool.take(40)
    assert first is not second and pool.in_use == 80
    address = first.ctypes.data
    pool.give(first)
    assert (pool.in_use, pool.idle) == (40, 40)
    assert pool.take(40).ctypes.data == address
    assert pool.take(30).nbytes == 30
    assert pool.statistics() == {"in_use": 110, "idle": 0, "made": 3, "reused": 1, "freed": 0}


def test_idle_buffers_past_the_threshold_are_given_back_at_the_next_request() -> None:
    pool = Pool(threshold=100)
    buffers = [pool.take(40) for _ in range(4)]
    gone = [weakref.ref(one) for one in buffers]
    while buffers:
        pool.give(buffers.pop(0))
    assert pool.idle == 160 and all(one() is not None for one in gone)  # marked, but there until somebody asks
    taken = pool.take(40)  # one of them is used again all the same
    assert gone[3]() is taken
    assert [one() is None for one in gone] == [True, True, False, False]
    assert (pool.freed, pool.idle, pool.in_use) == (2, 40, 40)


def test_a_marked_buffer_may_be_taken_by_the_next_request() -> None:
    pool = Pool(threshold=0)
    pool.give(pool.take(8))
    assert pool.idle == 8
    assert pool.take(8) is not None and pool.reused == 1 and pool.freed == 0


def test_nothing_in_use_is_freed_or_handed_out_twice() -> None:
    pool = Pool(threshold=0)
    held = [pool.take(16) for _ in range(5)]
    for number, buffer in enumerate(held):
        buffer[:] = number
    for _ in range(10):
        pool.give(pool.take(16))
        pool.give(pool.take(24))
    assert [set(one.tolist()) for one in held] == [{0}, {1}, {2}, {3}, {4}]
    assert pool.in_use == 80
