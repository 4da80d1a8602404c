"""The digest of what was delivered."""

from __future__ import annotations

import numpy as np
import pytest

from cordee.feed.order import Order, chain, delivered
from cordee.feed.share import Share

IDS = Order(1003, batch=101).ids(0, 3)


@pytest.mark.parametrize("share", [Share(), Share("proportional", (5, 3, 2)), Share("sampled")], ids=str)
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_it_does_not_depend_on_the_cut(share: Share, workers: int) -> None:
    parts = [share.positions(101, range(workers), index, (0, 3)) for index in range(workers)]
    total = sum(delivered(IDS[np.asarray(part, dtype=np.int64)], part) for part in parts) % 2**64
    assert total == delivered(IDS, range(101))


def test_it_notices_another_order_a_loss_and_a_repetition() -> None:
    whole = delivered(IDS, range(101))
    swapped = IDS.copy()
    swapped[[4, 5]] = swapped[[5, 4]]
    repeated = IDS.copy()
    repeated[7] = repeated[8]
    assert delivered(swapped, range(101)) != whole
    assert delivered(repeated, range(101)) != whole
    assert delivered(IDS[:-1], range(100)) != whole
    assert delivered(IDS, np.arange(101)) == whole


def test_an_empty_share_adds_nothing() -> None:
    assert delivered(IDS[:0], range(0)) == 0


def test_ids_and_positions_belong_together() -> None:
    with pytest.raises(ValueError, match="101 ids for 100"):
        delivered(IDS, range(100))


def test_the_chain_depends_on_every_step_and_takes_signed_sums() -> None:
    first = chain("", 0, 17, 101)
    assert len(first) == 64
    assert (
        len({first, chain(first, 1, 17, 101), chain("", 1, 17, 101), chain("", 0, 18, 101), chain("", 0, 17, 9)}) == 5
    )
    assert chain("", 0, -1, 4) == chain("", 0, 2**64 - 1, 4)  # as an int64 all-reduce returns it
