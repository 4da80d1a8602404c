"""The doctor looks at the machine: cores, memory, disk and compiler. Each judgement is a function of plain readings."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cordee.core.cgroup import MemoryLimit
from cordee.core.words import plural
from cordee.diagnose.check import Check

GIB = 1 << 30
ENOUGH_MEMORY = 2 * GIB
ENOUGH_SHARED = 256 << 20
"""Containers have 64 MiB by default: too little for NCCL and for DataLoader workers."""
ENOUGH_DISK = GIB


def judge_cores(count: int, quota: float | None) -> Check:
    """Cores that this process may run on, and how many cores' worth of time its control group gives it."""
    here = f"{plural(count, 'core')} to run on"
    if quota is None or quota >= count:
        return Check("cores", "ok", f"{here}, {'no quota' if quota is None else f'a quota of {quota:g}'}")
    whole = max(1, int(quota))
    other = f", or --workers 1 --threads {whole}" if whole > 1 else ""
    return Check(
        "cores",
        "warning",
        f"{here}, but a quota of {quota:g} cores' worth of time",
        f"Start no more than the quota: --workers {whole} --threads 1{other}. "
        "With more, all of them stop whenever the quota is used up.",
    )


def judge_memory(available: int, limit: MemoryLimit | None) -> Check:
    """What the kernel has, and what the control group leaves of it."""
    left = available
    state = f"{gib(available)} available"
    if limit is not None:
        left = min(available, limit.limit - limit.used)
        state += f"; the control group may use {gib(limit.limit)} and uses {gib(limit.used)}"
    if left >= ENOUGH_MEMORY:
        return Check("memory", "ok", state)
    need = f"{gib(max(left, 0))} are left, and a worker needs about 0.3 GiB before it holds a model"
    return Check("memory", "warning", state, f"{need}: end other programs, take fewer --workers, or raise the limit.")


def check_shared_memory() -> Check:
    """Whether /dev/shm is as large as NCCL on one host, and data loaders of a script's own, need it."""
    usage = shutil.disk_usage("/dev/shm")
    state = f"/dev/shm: {gib(usage.free)} free of {gib(usage.total)}"
    if usage.free >= ENOUGH_SHARED:
        return Check("shared memory", "ok", state)
    return Check(
        "shared memory",
        "warning",
        state,
        "Enough for gloo, too little for NCCL on several GPUs and for DataLoader workers of your own: "
        "in a container --shm-size=1g, elsewhere remove old files from /dev/shm.",
    )


def check_disk() -> Check:
    """Whether a run's folder can be written below the current one, where runs/ is made unless --out says otherwise."""
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Check("disk", "warning", f"{folder} cannot be written", "Go elsewhere, or give --out a folder.")
    if free < ENOUGH_DISK:
        return Check(
            "disk", "warning", f"{folder}: {gib(free)} free", "Checkpoints need room: free some, or give --out."
        )
    return Check("disk", "ok", f"{folder} can be written, {gib(free)} free")


def check_compiler() -> Check:
    """The C++ compiler that torch.compile calls for code on a CPU."""
    given, path = find_compiler()
    if path:
        return Check("C++ compiler", "ok", path)
    missing = f"CXX={given} is not there" if given else "neither g++ nor clang++"
    return Check(
        "C++ compiler", "warning", missing, "compile=true on a CPU needs one: install g++, or correct or unset CXX."
    )


def find_compiler() -> tuple[str, str]:
    """The variable CXX, and the path of the compiler: what CXX names, else g++ or clang++; empty if there is none."""
    given = os.environ.get("CXX", "")
    return given, next(filter(None, map(shutil.which, given.split()[:1] or ["g++", "clang++"])), "")


def gib(size: int) -> str:
    """A size in words: `1.5 GiB`, `64 MiB`."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"
