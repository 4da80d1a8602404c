"""NCCL: sums of tensors that lie on GPUs, where every rank has a GPU of its own; commits stay with gloo.

NCCL reports a lost peer neither soon nor surely, because its kernels spin. So a rank waits on the host until its own
sums are complete, or the channel says that a peer was lost; only then does it begin the small sum over gloo that
commits the step. The price is one wait of the host per step.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cordee.core.errors import PlanError
from cordee.group.store import HubStore
from cordee.group.transport.gloo import unless_broken
from cordee.group.transport.seam import Transport

_POLL_S = 0.00005


class NcclWork:
    """A sum of NCCL."""

    ends_by_itself = False

    def __init__(self, work: Any) -> None:
        """Made by `Nccl`."""
        self._work = work
        self._complete = False

    def has_ended(self) -> bool:
        """Whether the GPU is done with it."""
        return self._complete or bool(self._work.is_completed())

    def wait(self, broken: Callable[[], bool]) -> None:
        """On the host, until the GPU is done or a peer was lost."""
        while not self._complete:
            ended = self._work.is_completed()
            if broken():  # asked afterwards: a sum that was aborted counts as completed
                raise RuntimeError("a peer was lost before the sum was complete")
            if not ended:
                time.sleep(_POLL_S)
            self._complete = ended


class Nccl(Transport):
    """A group of NCCL."""

    def __init__(self, group: Any) -> None:
        """Made by `open_nccl`."""
        self._group = group

    def sum(self, tensor: Tensor) -> NcclWork | None:
        """Tensors on GPUs only."""
        return NcclWork(self._group.allreduce([tensor])) if tensor.is_cuda else None

    def cut(self) -> None:
        """End its kernels."""
        self._group.abort()


def open_nccl(
    store_of: Callable[[str], HubStore],
    place: tuple[int, int],
    device: str,
    backend: str,
    deadline_s: float,
    broken: Callable[[], bool],
) -> Nccl | None:
    """A group of the ranks that `store_of(purpose)` connects, if every one has a GPU to itself; `place`: rank, size."""
    rank, size = place
    mine = "" if backend == "gloo" or not device.startswith("cuda") else _gpu(device)
    store = store_of("devices")
    store.set(str(rank), f"{mine} ")
    if not mine:
        return None
    gpus = [store.get(str(other)).decode().strip() for other in range(size)]
    if not usable(gpus):
        if backend == "nccl":
            given = ", ".join(gpu or "no GPU" for gpu in gpus)
            raise PlanError(
                f"backend=nccl needs a GPU for every worker, shared with no other; the workers have {given}. "
                "Start as many workers as there are GPUs, or use backend=gloo"
            )
        return None
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=deadline_s)
    make = partial(dist.ProcessGroupNCCL, store_of("nccl"), rank, size, options)
    return Nccl(unless_broken(make, broken, deadline_s))


def usable(gpus: Sequence[str]) -> bool:
    """Whether every rank has a GPU, and none shares it."""
    return bool(gpus) and all(gpus) and len(set(gpus)) == len(gpus)


def _gpu(device: str) -> str:
    """A name that no other GPU has."""
    return f"{socket.gethostname()}/{torch.cuda.get_device_properties(device).uuid}"
