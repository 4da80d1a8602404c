"""gloo: collectives of CPU tensors over TCP, also the ones by which a step is committed.

After the loss of a rank, gloo wakes only the neighbours of that rank. A rank is released when its sockets are shut,
except one that has received part of a message: it blocks until the timeout. So a wait looks once per second whether a
peer was lost, and gives such a group up.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from cordee.group.transport.pace import Pace
from cordee.group.transport.seam import LostInMessage, Transport
from cordee.group.transport.sockets import open_sockets, seal, shut

FORM_S = 10.0
"""How long the first attempt to form a group may take; each further one may take twice as long as the one before."""
LOOK_S = 1.0
"""Between two looks whether a peer was lost; most ranks are woken by gloo at once."""


class GlooWork:
    """A collective of gloo, or a message to or from one rank."""

    ends_by_itself = True
    __slots__ = ("_is_message", "_work")

    def __init__(self, work: Any, *, is_message: bool = False) -> None:
        """Made by `Gloo`."""
        self._work, self._is_message = work, is_message

    def has_ended(self) -> bool:
        """Whether gloo is done with it."""
        return bool(self._work.is_completed())

    def wait(self, broken: Callable[[], bool]) -> None:
        """Until it ends; `LostInMessage` if gloo does not notice that a peer was lost."""
        if self._is_message:  # a timeout would close all connections of the group
            self._work.wait()
            return
        looks = 0
        while True:
            try:
                self._work.wait(timedelta(seconds=LOOK_S))
                return
            except RuntimeError as error:
                if self._work.is_completed():
                    self._work.wait()  # raises its own error, if any: it may have ended just after our timeout
                    return
                looks += broken()
                if looks > 1:  # sockets that were shut at the first look have had their time to be noticed
                    raise LostInMessage("a peer was lost in the middle of a message") from error


class Gloo(Transport):
    """A group of gloo, and its sockets."""

    def __init__(self, interface: str) -> None:
        """Not formed yet; `interface` is the address that it binds to."""
        self._interface = interface
        self._pace: Pace | None = None
        self.group: Any = None
        """As torch has it."""
        self._before: dict[int, str] | None = None
        """The sockets of this process before the group was made, while it is being made."""
        self._sockets: dict[int, str] = {}

    def form(
        self, store: Any, rank: int, size: int, timeouts_s: tuple[float, float], broken: Callable[[], bool]
    ) -> None:
        """Connect the ranks that `store` knows; `timeouts_s` are those of a collective and of this call."""
        # As many open files as the system permits: gloo keeps all connections, and aborts without room for one.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._before = open_sockets()
        make = partial(_make, store, rank, size, self._interface, timeouts_s[0])
        self.group = unless_broken(make, broken, timeouts_s[1])
        self._sockets, self._before = self._new_sockets(), None
        seal(self._sockets, self._interface)
        if broken():  # lost before the sockets were known
            shut(self._sockets)

    def pace(self, rates: Mapping[str, float]) -> None:
        """Send sums no faster than this: bytes per second to some addresses."""
        self._pace = Pace(self._sockets, rates)

    def sum(self, tensor: Tensor) -> GlooWork:
        """Add up in place; see `Transport`."""
        if self._pace is not None:
            self._pace.begin_sum(tensor.nbytes)
        return GlooWork(self.group.allreduce([tensor]))

    def gather(self, tensor: Tensor, parts: Sequence[Tensor]) -> GlooWork:
        """Each rank's tensor into its part."""
        if self._pace is not None:
            self._pace.lift()
        return GlooWork(self.group.allgather([list(parts)], [tensor]))

    def broadcast(self, tensor: Tensor, root: int) -> GlooWork:
        """The tensor of rank `root` for all."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        return GlooWork(self.group.broadcast([tensor], options))

    def send(self, tensor: Tensor, rank: int, tag: int) -> GlooWork:
        """To one rank."""
        return GlooWork(self.group.send([tensor], rank, tag), is_message=True)

    def receive(self, tensor: Tensor, rank: int, tag: int) -> GlooWork:
        """From one rank."""
        return GlooWork(self.group.recv([tensor], rank, tag), is_message=True)

    def cut(self) -> None:
        """Shut the sockets that are connected."""
        if self._before is not None:
            self._sockets = self._new_sockets()
        shut(self._sockets)

    def close(self, *, stuck: bool) -> None:
        """Let go of the group. Its threads take about 20 ms to end; a thread of our own waits for them.

        A group that is `stuck` is never closed: its threads wait for a peer that was lost.
        """
        if stuck:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))
        last = [self.group]
        self.group = None
        threading.Thread(target=last.clear, name="cordee-close").start()

    def _new_sockets(self) -> dict[int, str]:
        before = self._before or {}
        return {fd: inode for fd, inode in open_sockets().items() if before.get(fd) != inode}


def _make(store: Any, rank: int, size: int, interface: str, deadline_s: float) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=interface)]
    options._timeout = timedelta(seconds=deadline_s)
    options._threads = 2
    return dist.ProcessGroupGloo(store, rank, size, options)


def unless_broken(make: Callable[[], Any], broken: Callable[[], bool], timeout_s: float) -> Any:
    """What `make` returns; `RuntimeError` if a peer is lost before, or after `timeout_s`.

    A group that is being made blocks where no socket can be shut, and gloo takes any connection for a peer's: another
    attempt has other ports.
    """
    deadline = time.monotonic() + timeout_s
    made: Future[Any] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, name="cordee-form", daemon=True).start()
    while not wait([made], timeout=0.02).done:
        if broken():
            raise RuntimeError("the generation broke while it was formed")
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"a group of workers did not form within {timeout_s:.0f} s: a host is overloaded, or another "
                "program connects to gloo's ports"
            )
    return made.result()
