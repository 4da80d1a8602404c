"""What control groups (versions 1 and 2) allow this process: processor time and memory.

Containers and schedulers set these limits; neither the number of cores nor /proc/meminfo shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")


@dataclass(frozen=True)
class ControlGroup:
    """Where this process stands in the tree of one controller."""

    version: int
    mount: Path
    """The top of the tree, as far as it is visible here."""
    folder: Path
    """This process's own group."""

    def upwards(self) -> Iterator[Path]:
        """From the own group to the top: every group on the way may set a limit."""
        folder = self.folder
        while folder != self.mount and self.mount in folder.parents:
            yield folder
            folder = folder.parent
        yield self.mount


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that a group may use, and what it uses beyond files that could be dropped."""

    limit: int
    used: int


def find(controller: str, cgroups: str, mountinfo: str, root: Path = ROOT) -> ControlGroup | None:
    """The place by the texts of /proc/self/cgroup and /proc/self/mountinfo; None if the controller is not mounted."""
    paths = {}
    for line in cgroups.splitlines():
        fields = line.split(":", 2)  # number:controllers:path; version 2 names no controllers
        if len(fields) == 3:
            paths.update(dict.fromkeys(fields[1].split(","), fields[2]))
    mounts = list(_mounts(mountinfo))
    for version, name in ((1, controller), (2, "")):
        if name not in paths:
            continue
        for kind, options, base, point in mounts:
            if kind == ("cgroup" if version == 1 else "cgroup2") and (version == 2 or controller in options):
                mount = root / point.lstrip("/")
                return ControlGroup(version, mount, mount / _below(paths[name], base))
    return None


def control_group(controller: str, root: Path = ROOT) -> ControlGroup | None:
    """The place of this process."""
    proc = root / "proc" / "self"
    return find(controller, _read(proc / "cgroup"), _read(proc / "mountinfo"), root)


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
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None  # `max`, -1, or no such file
    return int(words[0]) / int(words[1])


def _memory(version: int, folder: Path) -> MemoryLimit | None:
    limit = _read(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).strip()
    used = _read(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes")).strip()
    # Version 1 writes "no limit" as the largest multiple of a page that fits into 63 bits.
    if not limit.isdigit() or int(limit) >= 1 << 62:
        return None
    wanted = "inactive_file" if version == 2 else "total_inactive_file"
    droppable = [line.split()[1] for line in _read(folder / "memory.stat").splitlines() if line.split()[:1] == [wanted]]
    in_use = int(used) if used.isdigit() else 0
    return MemoryLimit(int(limit), max(0, in_use - int(droppable[0] if droppable else 0)))


def _mounts(mountinfo: str) -> Iterator[tuple[str, list[str], str, str]]:
    """(kind, options, root of the mount, mount point) of each line of /proc/self/mountinfo."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) > 4 and len(kinds) > 2:
            yield kinds[0], kinds[2].split(","), fields[3], fields[4].replace("\\040", " ")


def _below(path: str, base: str) -> str:
    """The part of a group's path below the mount's own root; nothing when the mount does not show it."""
    try:
        return str(PurePosixPath(path).relative_to(base))
    except ValueError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
