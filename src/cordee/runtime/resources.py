"""What this host has for workers, and how it is cut among them: pure functions over a few readings."""

from __future__ import annotations

import resource

from cordee.core.errors import UsageError
from cordee.core.machine import gpus, usable_cores
from cordee.core.words import plural
from cordee.runtime.wording import COMMAND, Wording

WORKERS_PER_CORE = 32
"""Enough to try out on a small machine what is meant for a large one."""
LEAST_MEMORY = 32 << 20
"""What a worker takes beside what it shares with the others, before it holds a model."""
FILES_PER_WORKER = 4
"""Sockets that a worker may have towards each of the others, and the launcher towards each of them."""
OTHER_FILES = 64


def check_room(workers: int, cores: int, memory: int | None, files: int, wording: Wording = COMMAND) -> None:
    """Refuse more workers than a host has room for: by `memory` in bytes if it is known, `files` of a process."""
    bounds = {f"{WORKERS_PER_CORE} per core, on {plural(cores, 'core')}": WORKERS_PER_CORE * cores}
    if memory is not None:
        bounds[f"{memory / (1 << 30):.1f} GiB of memory are available"] = memory // LEAST_MEMORY
    if files != resource.RLIM_INFINITY:
        bounds[f"a process may open {files} files"] = (files - OTHER_FILES) // FILES_PER_WORKER
    reason, most = min(bounds.items(), key=lambda bound: bound[1])
    if workers > max(1, most):
        raise UsageError(
            f"{wording.option('workers', workers)}: at most {max(1, most)} can be started on this host ({reason}). "
            "Take fewer, or more hosts; for speed, one per core or GPU is best"
        )


def devices(workers: int, wanted: str, wording: Wording = COMMAND) -> list[str]:
    """A device for each worker of this host: `auto` takes GPUs where there are any; several workers may share one."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise UsageError(f"{wording.option('device', wanted)}: expected auto, cpu or cuda")
    count = gpus()
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        return ["cpu"] * workers
    if count == 0:
        raise UsageError(
            f"{wording.option('device', 'cuda')}: this host has no NVIDIA GPU that this process may use; "
            f"try {wording.option('device', 'cpu')}"
        )
    return [f"cuda:{worker % count}" for worker in range(workers)]


def allot(
    workers: int, cores: tuple[int, ...], threads: int | None, wording: Wording = COMMAND
) -> list[tuple[int, tuple[int, ...]]]:
    """Threads and cores of each worker: contiguous, sizes differ by at most one; more workers than cores share them."""
    for name, value in (("workers", workers), ("threads", threads)):
        if value is not None and value < 1:
            raise UsageError(f"{wording.option(name, value)}: at least 1 is needed")
    count = len(cores)
    parts = [
        cores[count * worker // workers : count * (worker + 1) // workers] or (cores[worker % count],)
        for worker in range(workers)
    ]
    return [(threads or len(part), part) for part in parts]


def spread(workers: int, hosts: int) -> list[int]:
    """How many workers each host has: as evenly as it goes, the first ones have those that are left over."""
    if workers < hosts:
        raise UsageError(f"{hosts} hosts, but --workers {workers}: each host needs at least one worker")
    return [workers // hosts + (host < workers % hosts) for host in range(hosts)]


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
        raise UsageError(f"--cores {text}: this process may use {', '.join(map(str, usable_cores()))}")
    return tuple(sorted(found))
