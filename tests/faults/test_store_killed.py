"""Builds of stores that are killed at any instant: what is there is whole, and the next build completes it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cordee.core.errors import DataError
from cordee.feed.exchange.fetch import fetch
from cordee.feed.exchange.holder import Holder
from cordee.feed.store.layout import MANIFEST
from cordee.feed.store.opened import open_store
from cordee.feed.store.recipe import Recipe
from cordee.feed.tasks import run_tasks
from exchanging import ACCESS, ANYWHERE
from harness import DEADLINE_S, descendants, until
from stores import KINDS, Divided, Slow, Thirds, Wide, built, check_rows, contents, opened, places_of

SHARD_BYTES = 500
ROWS = 90
WATCHED = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")


def forked(work: Callable[[], object]) -> int:
    """The number of a process that does this, ends with 0, and with 1 after an exception."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def ended(pid: int) -> int:
    """Its exit code; negative: the signal that killed it."""
    codes: list[int] = []

    def has_ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            codes.append(os.waitstatus_to_exitcode(status))
        return bool(found)

    until(has_ended)
    return codes[0]


def dying(build: Callable[[], object], after: int) -> Callable[[], object]:
    """The same, but the process kills itself before it touches the disk for the nth time."""

    def work() -> object:
        left = after

        def hook(event: str, arguments: object) -> None:
            nonlocal left
            if event in WATCHED:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        return build()

    return work


def recipe_of(folder: Path) -> Recipe:
    kinds = {name: KINDS[name] for name in ("id", "words")}
    places = places_of(folder, [30] * (ROWS // 30), 2**21)  # two parts each
    return Recipe(Divided(5, kinds), places, split=Thirds(), shard_bytes=SHARD_BYTES)


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix == ".npy")


def check_whole(out: Path) -> None:
    """A folder that opens is whole; one that does not says that it was not built to its end."""
    if not (out / MANIFEST).exists():
        with pytest.raises(DataError, match=r"not built to its end|is no store|is not there"):
            open_store(out)
        return
    open_store(out).verify()
    numbers = np.arange(ROWS)
    check_rows(opened(out), numbers[numbers % 3 != 0])
    check_rows(opened(out, "validation"), numbers[numbers % 3 == 0])


def kill_builders(tmp_path: Path, kills: int) -> None:
    """Kill so many builders, each at another instant; whenever a build gets to its end, another one begins."""
    recipe, out = recipe_of(tmp_path / "in"), tmp_path / "out"
    began = time.monotonic()
    built(recipe, tmp_path / "reference")
    whole_s = time.monotonic() - began
    reference, room = contents(tmp_path / "reference"), used(tmp_path / "reference")
    largest = room // 4  # more than any shard of it, with the heads of its files
    draw = random.Random(1)
    done = killed = 0
    while killed < kills:
        build = lambda: built(recipe, out)  # noqa: E731
        if draw.random() < 0.7:
            pid = forked(dying(build, draw.randrange(1, 150)))
        else:
            pid = forked(build)
            time.sleep(draw.random() * whole_s)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = ended(pid)
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
        if killed % 10 == 0 or code == 0:
            check_whole(out)
        assert used(out) <= room + largest
        if code == 0:
            done += 1
            assert contents(out) == reference
            shutil.rmtree(out)
    built(recipe, out)
    assert contents(out) == reference
    assert done, "no build got to its end: kills come too soon to mean much"


def test_builders_killed_at_any_instant(tmp_path: Path) -> None:
    kill_builders(tmp_path, 100)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # 329 s were seen on two cores with a load of 15
def test_many_builders_killed_at_any_instant(tmp_path: Path) -> None:
    kill_builders(tmp_path, 1_000)


def test_processes_that_fetch_a_store_killed_at_any_instant(tmp_path: Path) -> None:
    """What has the name of the store is whole, what came is not fetched again, and the next one completes it."""
    built(recipe_of(tmp_path / "in"), tmp_path / "made")
    ready, told = os.pipe()

    def hold() -> None:
        holder = Holder(tmp_path / "made", ANYWHERE, ACCESS)
        os.write(told, holder.place.encode())
        signal.pause()

    pid = forked(hold)
    url, cache = f"cordee://{os.read(ready, 100).decode()}/made", tmp_path / "cache"
    draw, killed = random.Random(3), 0
    try:
        while killed < 40:
            code = ended(forked(dying(lambda: fetch(url, access=ACCESS, folder=cache), draw.randrange(1, 250))))
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
            for whole in cache.glob("*"):
                if re.fullmatch("[0-9a-f]{32}", whole.name):
                    open_store(whole).verify()
                    shutil.rmtree(whole)
        reader = forked(lambda: open_store(fetch(url, access=ACCESS, folder=cache).folder).verify())
        assert ended(reader) == 0
        (store,) = (one for one in cache.iterdir() if re.fullmatch("[0-9a-f]{32}", one.name))
        assert contents(store) == contents(tmp_path / "made") and not list(cache.glob("*.part"))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)


def test_processes_of_a_build_are_killed(tmp_path: Path) -> None:
    places = places_of(tmp_path / "in", [100] * 4, 2**20)
    recipe = Recipe(Slow(4), places, split=Thirds(), shard_bytes=SHARD_BYTES)
    built(recipe, tmp_path / "reference")
    out = tmp_path / "out"
    builder = forked(lambda: built(recipe, out, processes=2))
    draw, kills = random.Random(2), 0
    while kills < 2:  # each task may run three times
        children: list[int] = []
        until(lambda found=children: found.extend(one.pid for one in descendants(builder)) or found)  # type: ignore[misc]
        time.sleep(draw.random() * 0.6)
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(children), signal.SIGKILL)
            kills += 1
    assert ended(builder) == 0
    assert contents(out) == contents(tmp_path / "reference")


def test_a_build_goes_on_where_another_was_killed(tmp_path: Path) -> None:
    places = places_of(tmp_path / "in", [100] * 4, 2**20)
    recipe = Recipe(Slow(4), places, split=Thirds(), shard_bytes=SHARD_BYTES)
    built(recipe, tmp_path / "reference")
    out = tmp_path / "out"
    builder = forked(lambda: built(recipe, out, processes=2))
    until(lambda: len(list(out.glob("train-*"))) >= 4)
    os.kill(builder, signal.SIGKILL)
    ended(builder)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.npy") if ".part" not in str(path)}
    built(recipe, out)  # it waits for processes of the other one that still end
    kept = sum(path.exists() and path.stat().st_mtime_ns == time_ns for path, time_ns in before.items())
    assert kept >= len(before) // 2
    assert contents(out) == contents(tmp_path / "reference")


def test_two_builders_of_one_folder(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path / "in")
    builders = [forked(lambda: built(recipe, tmp_path / "out")) for _ in range(3)]
    assert [ended(pid) for pid in builders] == [0, 0, 0]
    check_whole(tmp_path / "out")


def test_several_processes_read_one_store(tmp_path: Path) -> None:
    built(recipe_of(tmp_path / "in"), tmp_path / "out")
    source = opened(tmp_path / "out")
    source.rows(np.arange(3))
    assert [ended(forked(lambda: check_whole(tmp_path / "out"))) for _ in range(2)] == [0, 0]
    readers = [forked(lambda: check_rows(source, np.array([n for n in range(ROWS) if n % 3]))) for _ in range(3)]
    assert [ended(pid) for pid in readers] == [0, 0, 0]


def test_memory_is_bounded_by_the_shards(tmp_path: Path) -> None:
    places = places_of(tmp_path / "in", [200_000], 100)
    recipe = Recipe(Wide(2_000), places, shard_bytes=4 * 2**20)

    def work(out: Path) -> tuple[int, int]:
        built(Recipe(Wide(2_000), places_of(tmp_path / "few", [10]), shard_bytes=10**6), out / "small")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        built(recipe, out / "large")
        return before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    ((_, (before, after)),) = run_tasks(work, [tmp_path], processes=1, deadline_s=DEADLINE_S)
    assert used(tmp_path / "large") > 90 * 2**20
    assert after - before < 24 * 2**10  # KiB: a shard, a chunk, and copies of that
