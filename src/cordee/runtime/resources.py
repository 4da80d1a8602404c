"""What this host has for workers, and how it is cut among them: pure functions over a few readings."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from cordee.core.errors import UsageError
from cordee.core.machine import available_memory, gpus, usable_cores
from cordee.core.words import plural
from cordee.runtime.wording import COMMAND, Wording

WORKERS_PER_CORE = 32
"""Enough to try out on a small machine what is meant for a large one."""
LEAST_MEMORY = 32 << 20
"""What a worker takes beside what it shares with the others, before it holds a model."""
FILES_PER_WORKER = 4
"""Sockets that a worker may have towards each of the others, and the launcher towards each of them."""
OTHER_FILES = 64


@dataclass(frozen=True)
class Allotment:
    """What one worker may use."""

    threads: int
    cores: tuple[int, ...] = ()
    """Empty: any core."""


@dataclass(frozen=True)
class Room:
    """What bounds the number of workers on one host."""

    cores: int
    memory: int | None = None
    """Bytes that are available; None: not known."""
    files: int | None = None
    """Files that a process may have open; None: as many as it likes."""

    @classmethod
    def here(cls, cores: tuple[int, ...]) -> Room:
        """The room of this host, on these cores."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls(len(cores), available_memory(), None if files == resource.RLIM_INFINITY else files)

    def bounds(self) -> dict[str, int]:
        """The most workers by each of them, and what it is, in words."""
        cores = plural(self.cores, "core")
        found = {f"{WORKERS_PER_CORE} per core, on {cores}": WORKERS_PER_CORE * self.cores}
        if self.memory is not None:
            found[f"{self.memory / (1 << 30):.1f} GiB of memory are available"] = self.memory // LEAST_MEMORY
        if self.files is not None:
            found[f"a process may open {self.files} files"] = (self.files - OTHER_FILES) // FILES_PER_WORKER
        return {name: max(1, most) for name, most in found.items()}

    def check(self, workers: int, wording: Wording = COMMAND) -> None:
        """Refuse more workers than there is room for."""
        reason, most = min(self.bounds().items(), key=lambda bound: bound[1])
        if workers > most:
            raise UsageError(
                f"{wording.option('workers', workers)}: at most {most} can be started on this host ({reason}). "
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
    workers: int, cores: tuple[int, ...], *, threads: int | None, pin: bool, wording: Wording = COMMAND
) -> list[Allotment]:
    """Cut `cores` among `workers`: contiguous, sizes differ by at most one; more workers than cores share them."""
    if workers < 1:
        raise UsageError(f"{wording.option('workers', workers)}: at least 1 is needed")
    if threads is not None and threads < 1:
        raise UsageError(f"{wording.option('threads', threads)}: at least 1 is needed")
    count = len(cores)
    allotments = []
    for worker in range(workers):
        mine = cores[count * worker // workers : count * (worker + 1) // workers] or (cores[worker % count],)
        allotments.append(Allotment(threads or len(mine), mine if pin else ()))
    return allotments


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
