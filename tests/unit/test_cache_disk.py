"""The level on disk: several processes, killed at any moment, and damaged files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blocks import content
from cordee.core.errors import StorageError
from cordee.feed.cache.disk import Disk

HEAD = 24
HELPER = Path(__file__).parents[1] / "killing.py"


def fill(disk: Disk, block: int, nbytes: int = 1000) -> bool:
    claim = disk.claim(block, nbytes)
    return claim is not None and claim.write(content(block, nbytes))


def get(disk: Disk, block: int, nbytes: int = 1000) -> bool:
    into = np.empty(nbytes, np.uint8)
    found = disk.read(block, into)
    assert not found or np.array_equal(into, content(block, nbytes))
    return found


def on_disk(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.iterdir() if one.name not in ("lock", "used"))


def test_what_was_written_is_read_by_another_one_too(tmp_path: Path) -> None:
    one, other = (Disk(tmp_path / "a", 10_000, "k", lambda block: block) for _ in range(2))
    assert fill(one, 3) and get(one, 3) and get(other, 3)
    assert not get(other, 4) and one.claim(3, 1000) is None
    assert not get(Disk(tmp_path / "a", 10_000, "other", lambda block: block), 3)  # of another store


@pytest.mark.parametrize("damage", ["short", "flipped", "empty", "head", "longer"])
def test_a_damaged_file_is_never_read_and_makes_room(tmp_path: Path, damage: str) -> None:
    disk = Disk(tmp_path, 10_000, "k", lambda block: block)
    fill(disk, 1)
    raw = bytearray(disk.path(1).read_bytes())
    if damage == "flipped":
        raw[500] ^= 1
    if damage == "head":
        raw[3] ^= 1
    changed = {"short": raw[:-1], "empty": b"", "longer": raw + b"x"}.get(damage, raw)
    disk.path(1).write_bytes(changed)
    assert get(disk, 1) == (damage == "longer")  # what follows a block does not count
    if damage != "longer":
        assert disk.damaged == 1 and not disk.path(1).exists()
        assert fill(disk, 1) and get(disk, 1)


def test_a_block_that_cannot_be_read_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, 10_000, "k", lambda block: block)
    assert fill(disk, 1) and fill(disk, 2)

    def fails(handle: int, into: memoryview) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("cordee.feed.cache.disk._read_all", fails)
        assert not get(disk, 1)
    assert get(disk, 1)
    disk.path(2).unlink()
    disk.path(2).mkdir()
    assert not get(disk, 2)


def test_the_highest_rank_goes_first_and_the_budget_holds(tmp_path: Path) -> None:
    ranks = {1: 10, 2: 50, 3: 30, 4: 20, 5: 60}
    disk = Disk(tmp_path, 3 * (1000 + HEAD), "k", lambda block: ranks[block])
    assert all(fill(disk, block) for block in (1, 2, 3, 4))
    assert not fill(disk, 5)
    assert [get(disk, block) for block in (1, 2, 3, 4, 5)] == [True, False, True, True, False]
    ranks[1] = 70
    disk.rerank(1)
    assert fill(disk, 5) and not get(disk, 1)
    assert on_disk(tmp_path) == disk.used == 3 * (1000 + HEAD)
    assert not fill(disk, 2, 5000)


def test_blocks_of_other_stores_go_first(tmp_path: Path) -> None:
    old = Disk(tmp_path, 3 * (1000 + HEAD), "old", lambda block: 0)
    assert all(fill(old, block) for block in (1, 2, 3))
    new = Disk(tmp_path, 3 * (1000 + HEAD), "new", lambda block: block)
    assert all(fill(new, block) for block in (7, 8))
    assert on_disk(tmp_path) == new.used == 3 * (1000 + HEAD)
    assert get(new, 7) and get(new, 8) and sum(get(old, block) for block in (1, 2, 3)) == 1


def test_a_part_of_a_process_that_is_gone_is_removed_and_no_longer_counts(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 10_000, "k", lambda block: block)
    claim = disk.claim(1, 1000)
    assert claim is not None and disk.used == on_disk(tmp_path) == 1000 + HEAD
    assert disk.claim(1, 1000) is None  # it is being written
    os.close(claim._handle)  # as the kernel does when a process is killed
    assert not get(disk, 1)
    again = Disk(tmp_path, 10_000, "k", lambda block: block)
    assert again.used == on_disk(tmp_path) == 0
    assert fill(again, 1) and get(disk, 1)


def test_a_claim_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 10_000, "k", lambda block: block)
    claim = disk.claim(1, 1000)
    assert claim is not None
    claim.give_up()
    assert disk.used == on_disk(tmp_path) == 0 and not get(disk, 1)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/below cannot be used .*: name another one, Cache\(folder="):
        Disk(tmp_path / "file" / "below", 1000, "k", lambda block: 0)


def killed(folder: Path, kills: int, seed: int) -> dict[str, int]:
    command = [sys.executable, str(HELPER), str(folder), str(kills), str(seed)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def check(told: dict[str, int], kills: int) -> None:
    assert told["kills"] == kills and told["corrupt"] == 0
    assert told["left"] == told["counted"] <= told["budget"]
    assert told["most"] <= told["budget"] * 1.1 + HEAD  # files come and go while they are listed


def test_a_hundred_kills_while_blocks_are_written(tmp_path: Path) -> None:
    told = killed(tmp_path, 100, 1)
    check(told, 100)
    assert told["cut_short"] > 0 and told["read"] > 0  # there was something to go wrong


@pytest.mark.slow
def test_a_thousand_kills_while_blocks_are_written(tmp_path: Path) -> None:
    check(killed(tmp_path, 1000, 2), 1000)
