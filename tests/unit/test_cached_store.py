"""The cache of stores: built once, reused, shared by processes, within its budget, and never removed while in use."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from cordee.core.errors import StorageError, UsageError
from cordee.core.locks import take_lock
from cordee.feed.store.cached import budget_of, cached_store, entries_of
from cordee.feed.store.recipe import Recipe
from harness import until
from stores import KINDS, Counter, Slow, check_rows, places_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CORDEE_CACHE_BYTES", raising=False)
    return tmp_path / "cache"


def recipe_of(folder: Path, rows: int = 30, shard_bytes: int = 1000) -> Recipe:
    return Recipe(Counter(), places_of(folder, [rows]), shard_bytes=shard_bytes)


def names(cache: Path) -> set[str]:
    return {one.path.name for one in entries_of(cache)}


def test_a_store_is_built_once(tmp_path: Path, cache: Path) -> None:
    recipe = recipe_of(tmp_path / "in")
    store = cached_store(recipe)
    check_rows(store.sets["train"], np.arange(30))
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    again = cached_store(recipe)
    assert again.path == store.path == cache / recipe.key
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")} == before
    assert names(cache) == {recipe.key}


def test_a_damaged_store_is_built_again(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path / "in")
    path = cached_store(recipe).path
    next(path.rglob("x.npy")).unlink()
    check_rows(cached_store(recipe).sets["train"], np.arange(30))


def test_what_was_not_used_for_longest_goes_first_and_nothing_in_use(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, fourth = (recipe_of(tmp_path / name, 3000, 20_000 + at) for at, name in enumerate("abcd"))
    held = cached_store(first)
    one = next(entries_of(cache)).nbytes
    for at, recipe in enumerate((first, second, third)):
        path = cached_store(recipe).path
        os.utime(path / ".lock", (1_000 + at, 1_000 + at))
    monkeypatch.setenv("CORDEE_CACHE_BYTES", str(int(3.2 * one)))
    cached_store(fourth)
    assert names(cache) == {first.key, third.key, fourth.key}  # the first is the oldest, and in use
    check_rows(held.sets["train"], np.arange(3000))
    del held
    monkeypatch.setenv("CORDEE_CACHE_BYTES", str(int(1.2 * one)))
    cached_store(second)
    assert names(cache) == {second.key}


def test_a_store_that_waits_for_its_name_is_not_removed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes room between the end of a build and its last rename."""
    recipe, other = recipe_of(tmp_path / "in"), recipe_of(tmp_path / "other", shard_bytes=900)
    rename, tried = Path.rename, list[str]()

    def late(path: Path, target: Path) -> Path:
        if path.name.endswith(".part") and path.parent == cache and not tried:
            tried.append(path.name)
            monkeypatch.setenv("CORDEE_CACHE_BYTES", "1")
            with pytest.raises(StorageError, match=r"the cache .* may hold"):
                cached_store(other)
            monkeypatch.delenv("CORDEE_CACHE_BYTES")
            assert path.exists()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    check_rows(cached_store(recipe).sets["train"], np.arange(30))
    assert tried


def test_a_store_larger_than_the_budget_is_refused_and_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORDEE_CACHE_BYTES", "20K")
    with pytest.raises(StorageError, match="CORDEE_CACHE_BYTES"):
        cached_store(recipe_of(tmp_path / "in", 3000))
    assert sum(path.stat().st_size for path in cache.rglob("*.npy")) == 0


def test_budgets_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for text, value in (("100", 100), ("1.5K", 1536), ("2GiB", 2**31), ("3 TB", 3 * 2**40)):
        monkeypatch.setenv("CORDEE_CACHE_BYTES", text)
        assert budget_of(tmp_path) == value
    monkeypatch.setenv("CORDEE_CACHE_BYTES", "much")
    with pytest.raises(UsageError, match="much"):
        budget_of(tmp_path)
    monkeypatch.delenv("CORDEE_CACHE_BYTES")
    assert budget_of(tmp_path) > 0


def test_an_interrupted_build_is_taken_over(tmp_path: Path, cache: Path) -> None:
    kinds = {"id": KINDS["id"]}
    recipe = Recipe(Slow(5, kinds), places_of(tmp_path / "in", [500]), shard_bytes=100)
    pid = os.fork()
    if not pid:
        cached_store(recipe)
        os._exit(0)
    until(lambda: len(list(cache.glob("*.part/train-*"))) > 5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    there = {path.name for path in cache.glob("*.part/train-*") if path.suffix != ".part"}
    before = time.time()
    store = cached_store(recipe)
    kept = {one for one in there if (store.path / one / "id.npy").stat().st_mtime < before}
    assert len(kept) >= len(there) - 1
    assert store.sets["train"].rows(np.arange(500))["id"].tolist() == list(range(500))


def test_a_process_waits_for_another_that_builds(tmp_path: Path, cache: Path) -> None:
    recipe = recipe_of(tmp_path / "in")
    cache.mkdir()
    lock = take_lock(cache / f"{recipe.key}.lock")
    assert lock is not None
    pid = os.fork()
    if not pid:
        os.close(lock)
        os._exit(0 if len(cached_store(recipe).sets["train"]) == 30 else 1)
    time.sleep(0.3)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0) and not (cache / recipe.key).exists()
    os.close(lock)
    assert os.waitpid(pid, 0)[1] == 0
