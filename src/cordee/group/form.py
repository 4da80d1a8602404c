"""Making the groups of a generation, which nobody must wait for once a member is lost."""

from __future__ import annotations

import contextlib
import queue
import resource
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from cordee.group.store import HubStore

FORM_S = 10.0
"""How long the first attempt to form a group may take; each further one may take twice as long as the one before."""


def make_gloo(store: HubStore, rank: int, size: int, interface: str, deadline_s: float) -> Any:
    """A group of gloo among the members that `store` connects, bound to the address `interface`."""
    _raise_limit()
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=interface)]
    options._timeout = timedelta(seconds=deadline_s)
    options._threads = 2
    return dist.ProcessGroupGloo(store, rank, size, options)


def _raise_limit() -> None:
    """Open as many files as the system lets us: gloo keeps all connections, and aborts without room for one more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def unless_broken(make: Callable[[], Any], broken: Callable[[], bool], patience_s: float) -> Any:
    """What `make` gives; raises `RuntimeError` if a member is lost before, or if it takes longer than `patience_s`.

    gloo would wait for it where no socket can be shut. And it takes any connection for a peer's: another attempt has
    other ports.
    """
    deadline = time.monotonic() + patience_s
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_put_outcome, args=(made, make), name="cordee-form", daemon=True).start()
    while True:
        try:
            outcome = made.get(timeout=0.02)
        except queue.Empty:
            if broken():
                raise RuntimeError("the generation broke while it was formed") from None
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"a group of workers did not form within {patience_s:.0f} s: a host is overloaded, or another "
                    "program connects to gloo's ports"
                ) from None
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
