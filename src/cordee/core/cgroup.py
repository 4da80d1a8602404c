"""What control groups (versions 1 and 2) allow this process: processor time and memory.

Containers and schedulers set these limits; neither the number of cores nor /proc/meminfo shows them. The trees are
where every distribution and container mounts them: version 2 at `/sys/fs/cgroup`, each controller of version 1 below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_MEMORY_NAMES = {
    1: ("limit_in_bytes", "usage_in_bytes", "total_inactive_file"),
    2: ("max", "current", "inactive_file"),
}
"""By version: the files of the limit and of what is in use, and the line of `memory.stat` for what could be dropped."""


@dataclass(frozen=True)
class ControlGroup:
    """Where this process stands in the tree of one controller."""

    version: int
    mount: Path
    """The top of the tree, as far as it is visible here."""
    folder: Path
    """This process's own group; in a container it may be one that only its host sees."""

    def upwards(self) -> Iterator[Path]:
        """From the own group to the top: every group on the way may set a limit."""
        folder = self.folder
        while folder != self.mount:
            yield folder
            folder = folder.parent
        yield self.mount


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that a group may use, and what it uses beyond files that could be dropped."""

    limit: int
    used: int


def control_group(controller: str, root: Path = ROOT) -> ControlGroup | None:
    """The place of this process, by /proc/self/cgroup; None if the controller is not mounted."""
    paths = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)  # version 2 names no controllers
        paths.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
    top = root / "sys/fs/cgroup"
    for version, name, mount in ((1, controller, top / controller), (2, "", top)):
        if name in paths and mount.is_dir():
            return ControlGroup(version, mount, mount / paths[name])
    return None


def cpu_quota(root: Path = ROOT) -> float | None:
    """How many cores' worth of time this process may use; None without a limit."""
    found = control_group("cpu", root)
    quotas = [_quota(found.version, folder) for folder in found.upwards()] if found else []
    return min((one for one in quotas if one is not None), default=None)


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The tightest limit on this process's memory; None without one."""
    found = control_group("memory", root)
    limits = [_memory(found.version, folder) for folder in found.upwards()] if found else []
    return min((one for one in limits if one is not None), key=lambda one: one.limit - one.used, default=None)


def _quota(version: int, folder: Path) -> float | None:
    if version == 2:
        words = _read(folder / "cpu.max").split()  # `max 100000` or `150000 100000`
    else:
        words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None  # `max`, -1, or no such file
    return int(words[0]) / int(words[1])


def _memory(version: int, folder: Path) -> MemoryLimit | None:
    most, now, droppable = _MEMORY_NAMES[version]
    limit, used = (_read(folder / f"memory.{name}").strip() for name in (most, now))
    # Version 1 writes "no limit" as the largest multiple of a page that fits into 63 bits.
    if not limit.isdigit() or int(limit) >= 1 << 62:
        return None
    counts = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
    return MemoryLimit(int(limit), max(0, int(used or 0) - int(counts.get(droppable, 0))))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
