"""Sums and gathers through shared memory: right for all sizes and types, in whatever order they end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cordee.group.transport.shared import open_shared
from harness import JOBS, Run, assert_same, run_script, train


@pytest.mark.thinned(2)
@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("arena", ["large", "small"])
def test_sums_are_right_whoever_reads_late(workers: int, arena: str, tmp_path: Path) -> None:
    run_script(JOBS / "sums.py", tmp_path / "run", "shared", arena, workers=workers)


def test_the_same_sums_over_sockets(tmp_path: Path) -> None:
    run_script(JOBS / "sums.py", tmp_path / "run", "gloo", workers=3, plan="backend=gloo")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("arena", ["large", "small"])
def test_gathers_are_right_whichever_is_left_open(workers: int, arena: str, tmp_path: Path) -> None:
    run_script(JOBS / "gathers.py", tmp_path / "run", "shared", arena, workers=workers)


def test_the_same_gathers_over_sockets(tmp_path: Path) -> None:
    run_script(JOBS / "gathers.py", tmp_path / "run", "gloo", workers=3, plan="backend=gloo")


@pytest.mark.parametrize(("job", "workers"), [("mlp", 3), ("cnn", 2), ("gpt", 5)])
def test_training_over_sockets(job: str, workers: int, reference: Callable[..., Run], tmp_path: Path) -> None:
    assert_same(train(job, tmp_path / "run", workers=workers, plan="backend=gloo"), reference(job))


class Store(dict[str, bytes]):
    """What members of a generation write down for each other."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def test_whoever_cannot_reach_the_memory_says_so_and_all_do_without_it() -> None:
    elsewhere = Store({"where-0": f"{os.getpid()} 999999".encode()})
    elsewhere["reached-0"] = b"yes"
    assert open_shared(elsewhere, 1, 2, lambda: False, 1.0) == ()
    assert elsewhere["reached-1"] == b"no"
    first = Store({"reached-1": b"no"})
    held = set(os.listdir("/proc/self/fd"))
    assert open_shared(first, 0, 2, lambda: False, 1.0) == ()
    assert first["reached-0"] == b"yes" and set(os.listdir("/proc/self/fd")) <= held
