"""How a host's cores are cut among workers."""

from __future__ import annotations

import pytest

from cordee.core.errors import UsageError
from cordee.runtime.resources import allot, parse_cores, usable_cores


@pytest.mark.parametrize(
    ("workers", "cores", "sizes"),
    [(1, 4, [4]), (2, 4, [2, 2]), (3, 8, [2, 3, 3]), (4, 4, [1, 1, 1, 1]), (5, 2, [1, 1, 1, 1, 1])],
)
def test_cores_are_cut_evenly(workers: int, cores: int, sizes: list[int]) -> None:
    allotments = allot(workers, tuple(range(cores)), threads=None, pin=True)
    assert sorted(one.threads for one in allotments) == sorted(sizes)
    assert all(len(one.cores) == one.threads for one in allotments)
    if workers <= cores:
        assert sorted(core for one in allotments for core in one.cores) == list(range(cores))


def test_workers_are_pinned_only_on_request() -> None:
    assert all(one.cores == () for one in allot(2, (0, 1), threads=None, pin=False))
    assert [one.threads for one in allot(2, (0, 1), threads=3, pin=False)] == [3, 3]


@pytest.mark.parametrize(("workers", "threads", "word"), [(0, None, "--workers 0"), (2, 0, "--threads 0")])
def test_nothing_is_no_amount(workers: int, threads: int | None, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        allot(workers, (0, 1), threads=threads, pin=False)


def test_cores_are_named_by_numbers_and_ranges() -> None:
    mine = usable_cores()
    assert parse_cores(f"{mine[0]}") == mine[:1]
    assert parse_cores(",".join(map(str, mine))) == mine
    for wrong in ("", "x", "1-", "99999"):
        with pytest.raises(UsageError, match="--cores"):
            parse_cores(wrong)
