"""How a host's cores are cut among workers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cordee.core.errors import UsageError
from cordee.core.machine import usable_cores
from cordee.runtime.resources import Room, allot, parse_cores
from cordee.runtime.wording import PYTHON
from harness import DEADLINE_S


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


FAULTS = """
import resource
import torch
from cordee.core.heap import keep

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        [torch.ones(4 * 2**20) for _ in range(6)]  # 6 times 16 MiB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(keep())
faults()
print(faults() < 2_000)
"""


@pytest.mark.parametrize(("variables", "kept"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "1048576"}, False)])
def test_memory_that_is_freed_is_kept_unless_the_user_has_settings_of_his_own(
    variables: dict[str, str], kept: bool
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.split() == [str(kept)] * 2


GIB = 1 << 30


@pytest.mark.parametrize(
    ("room", "most", "reason"),
    [
        (Room(2), 64, "32 per core, on 2 cores"),
        (Room(64, memory=1 * GIB, files=1 << 20), 32, "1.0 GiB of memory"),
        (Room(64, memory=512 * GIB, files=1024), 240, "1024 files"),
        (Room(1, memory=1, files=1), 1, ""),  # one worker is never refused
    ],
)
def test_more_workers_than_there_is_room_for_are_refused(room: Room, most: int, reason: str) -> None:
    room.check(most)
    with pytest.raises(UsageError, match=f"--workers {most + 1}: at most {most} can be started") as caught:
        room.check(most + 1)
    assert reason in str(caught.value)
    with pytest.raises(UsageError, match="workers=100000: "):
        room.check(100_000, PYTHON)


def test_the_room_of_this_host() -> None:
    here = Room.here((0, 1, 2))
    assert here.cores == 3
    assert here.memory is not None and 0 < here.memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
