"""What this machine lets the calling process use: cores, GPUs, memory and ports."""

from __future__ import annotations

import os

import psutil

from cordee.core.cgroup import memory_limit


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def gpus() -> int:
    """How many NVIDIA GPUs this process may use, without loading a driver: a fork must not have touched one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = sum(1 for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit())
    return there if visible is None else min(there, len([one for one in visible.split(",") if one.strip()]))


def available_memory() -> int:
    """Bytes that new processes may take, by the kernel and by the control group."""
    available = psutil.virtual_memory().available
    limit = memory_limit()
    return available if limit is None else min(available, max(0, limit.limit - limit.used))


def listeners(port: int) -> set[int | None]:
    """The processes that listen at a TCP port of this network namespace; None: one that this user may not see."""
    connections = psutil.net_connections("tcp")
    return {one.pid for one in connections if one.status == psutil.CONN_LISTEN and one.laddr[1:] == (port,)}
