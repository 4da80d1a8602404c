"""Making the groups of a generation, which nobody must wait for once a member is lost."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from cordee.group.store import HubStore


def make_gloo(store: HubStore, rank: int, size: int, interface: str, deadline_s: float) -> Any:
    """A group of gloo among the members that `store` connects, bound to the address `interface`."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=interface)]
    options._timeout = timedelta(seconds=deadline_s)
    options._threads = 2
    return dist.ProcessGroupGloo(store, rank, size, options)


def unless_broken(make: Callable[[], Any], broken: Callable[[], bool]) -> Any:
    """What `make` gives; raises `RuntimeError` if a member is lost before.

    gloo would wait for it where no socket can be shut.
    """
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_put_outcome, args=(made, make), name="cordee-form", daemon=True).start()
    while True:
        try:
            outcome = made.get(timeout=0.02)
        except queue.Empty:
            if broken():
                raise RuntimeError("the generation broke while it was formed") from None
            continue
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def _put_outcome(made: queue.SimpleQueue[Any], make: Callable[[], Any]) -> None:
    try:
        made.put(make())
    except BaseException as error:
        made.put(error)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as real numbers, for sums and broadcasts: gloo has no complex types."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
