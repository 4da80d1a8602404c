"""NCCL for gradients that lie on GPUs, where every member has a GPU of its own; agreements stay with gloo.

NCCL reports a lost peer neither soon nor surely: its kernels spin. So nobody trusts it. A worker waits on the host
until its own sums are complete, or the channel says that somebody was lost; only then does it join the small sum over
gloo that makes the step an agreement. The price is one wait of the host a step.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from cordee.core.errors import PlanError

_POLL_S = 0.00005


def identity(device: str, backend: str) -> str:
    """Which GPU this worker has, as a word that no other GPU has; empty if NCCL is not for it."""
    if backend == "gloo" or not device.startswith("cuda"):
        return ""
    return f"{socket.gethostname()}/{torch.cuda.get_device_properties(device).uuid}"


def usable(identities: Sequence[str]) -> bool:
    """Whether every member has a GPU, and none shares it."""
    return bool(identities) and all(identities) and len(set(identities)) == len(identities)


def require(identities: Sequence[str]) -> None:
    """Refuse `backend=nccl` where it cannot work."""
    if not usable(identities):
        given = ", ".join(one or "no GPU" for one in identities)
        raise PlanError(
            f"backend=nccl needs a GPU for every worker, shared with no other; the workers have {given}. "
            "Start as many workers as there are GPUs, or use backend=gloo"
        )


def identities(store: Any, rank: int, size: int, mine: str, backend: str) -> list[str]:
    """Those of all members, in rank order; none if this one has none, for then it does not matter."""
    store.set(str(rank), f"{mine} ")
    if not mine:
        return []
    found = [store.get(str(other)).decode().strip() for other in range(size)]
    if backend == "nccl":
        require(found)
    return found


def make(store: Any, rank: int, size: int, deadline_s: float) -> Any:
    """A group of NCCL among the members that `store` connects."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=deadline_s)
    return dist.ProcessGroupNCCL(store, rank, size, options)


def complete(works: Sequence[Any], broken: Callable[[], bool]) -> bool:
    """Wait on the host until these are done; False if somebody was lost before that."""
    for work in works:
        while work is not None and not work.is_completed():
            if broken():
                return False
            time.sleep(_POLL_S)
    return not broken() and all(work is not None for work in works)
