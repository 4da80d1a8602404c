"""The levels of a cache: what each keeps is the best that any choice could, and what comes out is what is there."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from blocks import Blocks, content, optimum
from cordee.core.errors import DataError
from cordee.feed.cache.levels import Levels
from cordee.feed.cache.policy import Shelf, Verdict
from cordee.feed.cache.reader import Reader
from cordee.feed.cache.settings import Cache
from cordee.feed.coming import Coming
from cordee.feed.order import Order
from cordee.feed.permute import Ids
from cordee.feed.share import Share, Shares
from harness import until

EACH = 8
"""Samples of a block."""
BLOCKS, NBYTES = 40, 1024


def block_of(ids: Ids) -> Ids:
    return ids // EACH


def coming(start: tuple[int, int, int] = (0, 0, 0), **more: object) -> Coming:
    order = Order(**{"samples": BLOCKS * EACH, "batch": 24, "seed": 3, **more})  # type: ignore[arg-type]
    return Coming(order, Shares(), (0,), 0, start=start)


def gathers(what: Coming, epochs: int) -> list[Ids]:
    order = what.order
    slots = [(epoch, step) for epoch in range(epochs) for step in range(order.steps)]
    return [order.ids(*slot) for slot in slots if slot >= what.start[:2]]


def walked(levels: Levels, what: Coming, epochs: int) -> list[int]:
    """Go through epochs, check each block, and give the blocks in the order in which they were read."""
    reader, read = Reader(levels, what, block_of), []
    for ids in gathers(what, epochs):
        blocks = list(dict.fromkeys(block_of(ids).tolist()))
        assert reader.gathers(ids) == 1
        left = iter(blocks)
        for block in reader.blocks(1):
            assert block.number == next(left)
            assert np.array_equal(block.wait(10), content(block.number, NBYTES))
            del block
        assert next(left, None) is None
        read += blocks
    reader.close()
    return read


@pytest.mark.parametrize("places", [4, 12, 24])
@pytest.mark.parametrize("shuffle", ["full", "blocks", "none"])
def test_memory_hits_as_often_as_the_best_choice_offline(places: int, shuffle: str) -> None:
    levels = Levels(Cache(memory=places * NBYTES, ahead=0, disk=0), Blocks(BLOCKS))
    read = walked(levels, coming(shuffle=shuffle, block=EACH, window=4), 5)
    assert levels.counters.memory_hits == optimum(read, places)
    assert levels.counters.reads == len(read)
    lru = Levels(Cache(memory=places * NBYTES, ahead=0, disk=0, policy="lru"), Blocks(BLOCKS))
    assert walked(lru, coming(shuffle=shuffle, block=EACH, window=4), 5) == read
    assert lru.counters.memory_hits <= levels.counters.memory_hits


def test_both_levels_together_hit_as_often_as_one_of_their_size(tmp_path: Path) -> None:
    head = 24
    cache = Cache(memory=6 * NBYTES, ahead=0, disk=10 * (NBYTES + head), folder=tmp_path)
    levels = Levels(cache, Blocks(BLOCKS))
    read = walked(levels, coming(), 4)
    assert levels.counters.memory_hits + levels.counters.disk_hits == optimum(read, 16)
    assert levels.counters.memory_hits > 0 and levels.counters.disk_hits > 0 and levels.counters.demoted > 0


def test_reading_ahead_fetches_as_much_as_reading_on_demand() -> None:
    quiet, ahead = Blocks(BLOCKS), Blocks(BLOCKS)
    walked(Levels(Cache(memory=12 * NBYTES, ahead=0, disk=0), quiet), coming(), 3)
    levels = Levels(Cache(memory=20 * NBYTES, ahead=8 * NBYTES, disk=0, connections=3), ahead)
    walked(levels, coming(), 3)
    assert len(quiet.fetched) <= len(ahead.fetched) <= len(quiet.fetched) + 12  # it was ahead when it was closed


@pytest.mark.parametrize("ahead", [0, 3])
def test_memory_is_never_over_its_budget_by_more_than_a_block(ahead: int) -> None:
    levels = Levels(Cache(memory=6 * NBYTES, ahead=ahead * NBYTES, disk=0), Blocks(BLOCKS))
    most, take = [0], levels.pool.take

    def watched(nbytes: int) -> np.ndarray:
        buffer = take(nbytes)
        most[0] = max(most[0], levels.pool.in_use)
        return buffer

    levels.pool.take = watched  # type: ignore[method-assign]
    walked(levels, coming(), 3)
    assert most[0] <= 7 * NBYTES
    gc.collect()


def test_the_thread_does_not_run_away_where_all_blocks_are_in_memory() -> None:
    levels = Levels(Cache(memory=2 * BLOCKS * NBYTES, disk=0), Blocks(BLOCKS))
    what = coming()
    reader = Reader(levels, what, block_of)
    for ids in gathers(what, 2):
        assert reader.gathers(ids) == 1
        for block in reader.blocks(1):
            del block
    until(lambda: len(reader._ready) >= 512)
    reads = levels.counters.reads
    assert len(reader._ready) == 512
    reader.close()
    until(lambda: reader._thread is not None and not reader._thread.is_alive())
    assert levels.counters.reads <= reads + 2


def test_a_budget_smaller_than_one_block_only_passes_blocks_on(tmp_path: Path) -> None:
    levels = Levels(Cache(memory=NBYTES // 2, disk=NBYTES // 2, folder=tmp_path), Blocks(BLOCKS))
    read = walked(levels, coming(), 2)
    assert levels.counters.memory_hits == levels.counters.disk_hits == 0
    assert levels.counters.fetched >= len(read)
    assert [one.name for one in tmp_path.iterdir() if one.name not in ("lock", "used")] == []


def test_an_inner_reader_does_not_disturb_what_the_outer_one_is_going_to_read() -> None:
    """An evaluation over the same blocks, in another order, in the middle of a training."""
    origin = Blocks(BLOCKS)
    levels = Levels(Cache(memory=12 * NBYTES, ahead=0, disk=0), origin)
    what = coming()
    reader = Reader(levels, what, block_of)
    for step, ids in enumerate(gathers(what, 2)):
        if step == 7:
            walked(levels, coming(shuffle="none"), 1)
        assert reader.gathers(ids) == 1
        for block in reader.blocks(1):
            assert np.array_equal(block.wait(10), content(block.number, NBYTES))
            del block
    before = len(origin.fetched)
    alone = Blocks(BLOCKS)
    walked(Levels(Cache(memory=12 * NBYTES, ahead=0, disk=0), alone), what, 2)
    assert before <= len(alone.fetched) + BLOCKS  # the evaluation fetched what was not there, once
    reader.close()


def test_reads_that_were_not_announced_are_answered_and_do_not_move_the_reader() -> None:
    levels = Levels(Cache(memory=6 * NBYTES, ahead=0, disk=0), Blocks(BLOCKS))
    what = coming()
    reader = Reader(levels, what, block_of)
    first, second, *_ = gathers(what, 1)
    assert reader.gathers(first[::-1].copy()) == 0
    assert reader.gathers(second) == 0
    assert levels.read(5).wait(10)[0] == content(5, NBYTES)[0]
    assert reader.gathers(np.concatenate([first, second])) == 2


@pytest.mark.parametrize("start", [(0, 5, 0), (1, 13, 0)])
def test_a_reader_begins_anywhere(start: tuple[int, int, int]) -> None:
    """As after a resume in mid-epoch, at the last step of an epoch too."""
    levels = Levels(Cache(memory=12 * NBYTES, ahead=0, disk=0), Blocks(BLOCKS))
    read = walked(levels, coming(start), 4)
    assert levels.counters.memory_hits == optimum(read, 12)


def test_a_block_that_cannot_be_had_is_an_error_and_is_asked_for_again() -> None:
    class Broken(Blocks):
        broken = True

        def fetch(self, block: int, into: np.ndarray) -> None:
            if self.broken and block == 7:
                raise DataError("gone")
            super().fetch(block, into)

    origin = Broken(BLOCKS)
    for ahead in (0, 2 * NBYTES):
        origin.broken = True
        levels = Levels(Cache(memory=6 * NBYTES, ahead=ahead, disk=0), origin)
        with pytest.raises(DataError, match="gone"):
            walked(levels, coming(), 1)
        origin.broken = False
        assert np.array_equal(levels.read(7).wait(10), content(7, NBYTES))


def test_a_long_epoch_is_known_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordee.feed.coming.AT_ONCE", 60)
    levels = Levels(Cache(memory=12 * NBYTES, ahead=0, disk=0), Blocks(BLOCKS))
    read = walked(levels, coming(), 4)
    assert 0 < levels.counters.memory_hits <= optimum(read, 12)


def test_what_comes_is_what_the_shares_say() -> None:
    order = Order(100, 13, seed=1)
    for share in (Share(), Share("proportional", (3.0, 0.0, 1.0)), Share("sampled", seed=2)):
        for index in range(3):
            for accumulate in (1, 3):
                stretches = Coming(order, Shares(((0, share),)), (0, 1, 2), index, accumulate).stretches()
                for epoch in range(2):
                    stretch = next(stretches)
                    parts = np.split(stretch.ids, stretch.ends[:-1])
                    expected = []
                    for step in range(order.steps):
                        whole = order.ids(epoch, step)
                        micros = min(accumulate, len(whole))
                        for micro in range(micros):
                            piece = whole[len(whole) * micro // micros : len(whole) * (micro + 1) // micros]
                            own = share.positions(len(piece), (0, 1, 2), index, (epoch, step, micro))
                            expected.append(piece[np.asarray(own, np.int64)] if len(own) else piece[:1])
                    assert [one.tolist() for one in parts] == [one.tolist() for one in expected]


def test_what_comes_in_whole_pieces() -> None:
    order = Order(100, 13, seed=1)
    for share in (Share(), Share("proportional", (3.0, 0.0, 1.0)), Share("sampled", seed=2)):
        for index in range(3):
            coming = Coming(order, Shares(((0, share),)), (0, 1, 2), index, 4, (1, 2, 0), whole=True)
            expected = []
            for step in range(2, order.steps):
                pieces = np.array_split(order.ids(1, step), [13 * at // 4 for at in (1, 2, 3)])
                if step == order.steps - 1:  # a short one: 9 samples
                    pieces = np.array_split(order.ids(1, step), [9 * at // 4 for at in (1, 2, 3)])
                mine = [pieces[int(at)] for at in share.positions(4, (0, 1, 2), index, (1, step, 0))]
                expected += [one.tolist() for one in mine or [pieces[0][:1]]]
            stretch = next(coming.stretches())
            assert [one.tolist() for one in np.split(stretch.ids, stretch.ends[:-1])] == expected


def test_a_verdict_is_made_of_ranks_and_sizes() -> None:
    shelf = Shelf(10)
    assert shelf.decide(1, 11, 0) == Verdict(False)
    for block, nbytes, rank in ((1, 4, 30), (2, 4, 10), (3, 2, 20)):
        assert shelf.decide(block, nbytes, rank) == Verdict(True)
        shelf.put(block, nbytes, rank)
    assert shelf.decide(4, 2, 40) == Verdict(False)
    assert shelf.decide(4, 5, 15) == Verdict(True, (1, 3))
    assert shelf.decide(4, 9, 15) == Verdict(False)
    shelf.rank(1, 5)
    assert shelf.decide(4, 1, 15) == Verdict(True, (3,))
    shelf.drop(3)
    assert (shelf.used, len(shelf), 3 in shelf) == (8, 2, False)


@pytest.mark.parametrize("given", ["2 parsecs", -1, True, "", None])
def test_a_size_that_is_none(given: object) -> None:
    with pytest.raises(DataError, match="memory="):
        Cache(memory=given)  # type: ignore[arg-type]


def test_sizes_in_words() -> None:
    cache = Cache(memory="2GB", disk="1.5GiB", block="64kB")
    assert (cache.memory, cache.disk, cache.block) == (2_000_000_000, 3 << 29, 64_000)
    with pytest.raises(DataError, match="ahead=2000 is more than memory=1000"):
        Cache(memory=1000, ahead=2000)
