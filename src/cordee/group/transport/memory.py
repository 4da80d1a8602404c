"""Memory that ranks of one host share. It has no name, and is gone with the last process that has it mapped.

Whether two ranks are on one host, they find out by what each says of its own (`homes`), not by addresses.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

Store = Any


def home() -> str:
    """This start of this machine, which processes we can see on it, and its network: an emulated host has its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.readlink('/proc/self/ns/net')}".replace(" ", "")
    except OSError:
        return f"unknown/{os.getpid()}"


def homes(store: Store, rank: int, size: int) -> list[str]:
    """The host of each rank."""
    store.set(f"home-{rank}", home())
    return [store.get(f"home-{one}").decode() for one in range(size)]


def open_memory(store: Store, rank: int, size: int, mates: Sequence[int], length: int) -> memoryview | None:
    """So many bytes that the `mates` of this rank's host share, itself included; they begin as zeros.

    All of `size` ranks call this, each with its mates. None for all of them if one does not reach its memory.
    """
    first, descriptor = mates[0], -1
    try:
        if rank == first:
            descriptor = _create(length)
            store.set(f"where-{first}", f"{os.getpid()} {descriptor}")
        else:
            descriptor = _find(store.get(f"where-{first}").decode())
        memory = None
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # a limit (ulimit -v) forbids it
                memory = mmap.mmap(descriptor, length)
        store.set(f"reached-{rank}", "yes" if memory is not None else "no")
        reached = [store.get(f"reached-{one}") for one in range(size)]
        return memoryview(memory) if memory is not None and all(answer == b"yes" for answer in reached) else None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def kind_of(tensor: Tensor, *, gathers: bool = False) -> int:
    """What has to be the same with all ranks: size, format, and whether it is a sum or a gather."""
    return tensor.nbytes << 8 | tensor.element_size() << 2 | tensor.is_floating_point() << 1 | gathers


def check_kind(rank: int, kind: int, other: int, found: int) -> None:
    """`RuntimeError` if the `other` rank has posted something of another kind than this `rank` has."""
    if found != kind:
        sizes = f"{found >> 8} bytes there, {kind >> 8} here"
        raise RuntimeError(f"rank {other} began another collective than rank {rank} did: {sizes}")


def _create(length: int) -> int:
    """Anonymous memory; -1 where the system has none, or a processor may show others our writes in another order."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return -1
    try:
        descriptor = os.memfd_create("cordee-shared")
        os.ftruncate(descriptor, length)
        return descriptor
    except (AttributeError, OSError):
        return -1


def _find(where: str) -> int:
    """The memory of another rank, through the list of what its process holds; -1 if we may not, or it has none."""
    pid, descriptor = where.split()
    try:
        return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
