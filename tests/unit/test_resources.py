"""How a host's cores are cut among workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cordee.core.errors import UsageError
from cordee.core.machine import usable_cores
from cordee.core.plan import Plan
from cordee.group.wire import Address
from cordee.runtime.engines.seam import seats
from cordee.runtime.launch import Launch
from cordee.runtime.resources import allot, check_room, parse_cores
from cordee.runtime.spec import Target
from cordee.runtime.wording import PYTHON
from harness import DEADLINE_S


@pytest.mark.parametrize(
    ("workers", "cores", "sizes"),
    [(1, 4, [4]), (2, 4, [2, 2]), (3, 8, [2, 3, 3]), (4, 4, [1, 1, 1, 1]), (5, 2, [1, 1, 1, 1, 1])],
)
def test_cores_are_cut_evenly(workers: int, cores: int, sizes: list[int]) -> None:
    allotments = allot(workers, tuple(range(cores)), None)
    assert sorted(threads for threads, _ in allotments) == sorted(sizes)
    assert all(len(own) == threads for threads, own in allotments)
    if workers <= cores:
        assert sorted(core for _, own in allotments for core in own) == list(range(cores))
    assert [threads for threads, _ in allot(workers, tuple(range(cores)), 3)] == [3] * workers


def test_workers_are_pinned_only_on_request() -> None:
    core = usable_cores()[:1]
    for given in (None, core):
        launch = Launch(Target("job", "job.py"), 1, Plan(), Path("out"), cores=given)
        assert launch.spec(Address("127.0.0.1", 1, "token"), "127.0.0.1", *seats([1])).cores == (given or ())


@pytest.mark.parametrize(("workers", "threads", "word"), [(0, None, "--workers 0"), (2, 0, "--threads 0")])
def test_nothing_is_no_amount(workers: int, threads: int | None, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        allot(workers, (0, 1), threads)


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


@pytest.mark.thinned(2)
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
        ((2, None, -1), 64, "32 per core, on 2 cores"),
        ((64, 1 * GIB, 1 << 20), 32, "1.0 GiB of memory"),
        ((64, 512 * GIB, 1024), 240, "1024 files"),
        ((1, 1, 1), 1, ""),  # one worker is never refused
    ],
)
def test_more_workers_than_there_is_room_for_are_refused(
    room: tuple[int, int | None, int], most: int, reason: str
) -> None:
    check_room(most, *room)
    with pytest.raises(UsageError, match=f"--workers {most + 1}: at most {most} can be started") as caught:
        check_room(most + 1, *room)
    assert reason in str(caught.value)
    with pytest.raises(UsageError, match="workers=100000: "):
        check_room(100_000, *room, PYTHON)
