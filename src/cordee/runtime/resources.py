"""What this host has for workers, and how it is cut among them: pure functions over a few readings."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from cordee.core.errors import UsageError


@dataclass(frozen=True)
class Allotment:
    """What one worker may use."""

    threads: int
    cores: tuple[int, ...] = ()
    """Empty: any core."""


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def gpus() -> int:
    """How many NVIDIA GPUs this process may use, without loading a driver: a fork must not have touched one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = sum(1 for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit())
    return there if visible is None else min(there, len([one for one in visible.split(",") if one.strip()]))


def devices(workers: int, wanted: str) -> list[str]:
    """A device for each worker of this host: `auto` takes GPUs where there are any; several workers may share one."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {wanted}: expected auto, cpu or cuda")
    count = gpus()
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        return ["cpu"] * workers
    if count == 0:
        raise UsageError("--device cuda: this host has no NVIDIA GPU that this process may use; try --device cpu")
    return [f"cuda:{worker % count}" for worker in range(workers)]


def allot(workers: int, cores: tuple[int, ...], *, threads: int | None, pin: bool) -> list[Allotment]:
    """Cut `cores` among `workers`: contiguous, sizes differ by at most one; more workers than cores share them."""
    if workers < 1:
        raise UsageError(f"--workers {workers}: at least 1 is needed")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads}: at least 1 is needed")
    count = len(cores)
    allotments = []
    for worker in range(workers):
        mine = cores[count * worker // workers : count * (worker + 1) // workers] or (cores[worker % count],)
        allotments.append(Allotment(threads or len(mine), mine if pin else ()))
    return allotments


def keep_memory() -> bool:
    """Let this process keep memory that it frees; False where the C library has no such setting.

    glibc gives what a step frees back to the system, which has to clear every page of it for the next step: on a CPU,
    thousands of page faults a step. Held instead, memory stays at its peak, as on a GPU. The user's own settings stay.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    trim_threshold, mmap_threshold = -1, -3  # their numbers in malloc.h
    return bool(mallopt(mmap_threshold, 32 * 2**20) and mallopt(trim_threshold, 2**31 - 1))  # the largest it takes


def parse_cores(text: str) -> tuple[int, ...]:
    """The cores meant by `0-3,8`."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found.update(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        raise UsageError(f"--cores {text}: expected numbers and ranges such as 0-3,8") from None
    missing = found - set(usable_cores())
    if missing or not found:
        raise UsageError(f"--cores {text}: this process may use {_ranges(usable_cores())}")
    return tuple(sorted(found))


def _ranges(cores: tuple[int, ...]) -> str:
    return ", ".join(map(str, cores))
