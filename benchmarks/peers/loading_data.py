"""The samples that loaders read, what a loader is here, and how a file is taken out of the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

SAMPLES, SHAPE, BATCH = 40_000, (32, 32, 3), 128
SEED = 1
PAGE = mmap.PAGESIZE


class Reading(Protocol):
    """Batches of an opened set: x is a uint8 tensor of (batch, 32, 32, 3), y an int64 tensor, the sample's number."""

    def epoch(self, number: int) -> Iterator[tuple[Any, Any]]:
        """All batches of an epoch, shuffled; another order in each."""
        ...

    def state(self) -> Any:
        """What has to be saved to go on behind the batch that was taken last."""
        ...

    def resume(self, state: Any) -> Iterator[tuple[Any, Any]]:
        """In another process, which opened the set in the same way: the rest of the epoch that was left."""
        ...


class Loading(Protocol):
    """How one system writes the samples, and how it reads them; a setting holds arguments of `open`."""

    def write(self, folder: Path, x: np.ndarray, y: np.ndarray) -> None:
        """In the system's own form, without compression."""
        ...

    def open(self, folder: Path, **setting: Any) -> Reading:
        """Everything that a new process does before it asks for its first batch, imports apart."""
        ...


@dataclass(frozen=True)
class System:
    """One contender."""

    words: str
    """What it is; stands in the recorded result."""
    script: str
    """The module that holds its `Loading`, and the name there."""
    loading: str
    packages: tuple[str, ...] = ()
    """Whose versions are recorded."""
    modules: tuple[str, ...] = ()
    """Imported before the clock is started."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    """What is tried; the fastest one is measured."""
    environment: str = ""
    """A folder within the peers' environment that holds another one, for versions that do not fit the others'."""
    whole_batches: bool = False
    """Whether the user's own code gathers a batch: no loader of samples, but a loop by hand in its process."""


def made() -> tuple[np.ndarray, np.ndarray]:
    """The samples: random bytes, and the numbers of the samples as labels, so that each one is known again."""
    draw = np.random.default_rng(SEED)
    x = draw.integers(0, 256, (SAMPLES, *SHAPE), dtype=np.uint8)
    return x, np.arange(SAMPLES, dtype=np.int64)


def quality(ids: np.ndarray) -> float:
    """Mean distance of samples that follow each other, over that of a random order: a third of their number."""
    return float(np.abs(np.diff(ids)).mean() / (SAMPLES / 3))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def forget(folder: Path) -> float:
    """Take the files of a folder out of the page cache; the part of their pages that is still in memory."""
    for path in _files(folder):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)  # pages that are not yet on the disk stay
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(number)
    pages = [resident(path) for path in _files(folder)]
    return sum(there for there, _ in pages) / max(1, sum(all_of for _, all_of in pages))


def resident(path: Path) -> tuple[int, int]:
    """How many pages of a file are in memory, and how many it has."""
    size = path.stat().st_size
    count = -(-size // PAGE)
    there = (ctypes.c_ubyte * count)()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        address = ctypes.c_void_p(view.ctypes.data)
        del view
        if ctypes.CDLL(None, use_errno=True).mincore(address, ctypes.c_size_t(size), there):
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
    return sum(one & 1 for one in there), count
