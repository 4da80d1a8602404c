"""Messages between two members of a `Comm`: sent without waiting, and awaited by threads of their own.

gloo carries a message only when its receiver has asked for it, so messages are expected before they are needed. A
thread waits for them, because gloo does not wake a rank that has received part of a message when its peer is lost.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from cordee.group.comm import Comm, Handle
from cordee.group.transport.gloo import LOOK_S

MOST_PARTS = 64
"""Tensors of one message: tags of messages are so far apart."""


class Expected:
    """A message that was asked for, or one that is on its way to another member."""

    def __init__(self, what: str, tensors: Sequence[Tensor], handles: Sequence[Handle]) -> None:
        """`what` it is, for errors."""
        self.what, self.tensors, self._handles = what, tensors, handles
        self.over = threading.Event()
        self.error: RuntimeError | None = None

    def wait(self) -> None:
        """Until it is here or lost; on the thread of a `_Waiter`."""
        try:
            for handle in self._handles:
                handle.wait_apart()
        except RuntimeError as error:
            self.error = error
        self.over.set()


class _Waiter:
    """A thread that waits for messages, one after the other."""

    def __init__(self, name: str) -> None:
        self._ahead: queue.SimpleQueue[Expected | None] = queue.SimpleQueue()
        self.put = self._ahead.put
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (message := self._ahead.get()) is not None:
            message.wait()


class Mail:
    """Sends and receives messages among the members of one `Comm`; the calls of one worker come from one thread."""

    def __init__(self, comm: Comm) -> None:
        """Nothing is sent or expected yet."""
        self._comm = comm
        self._waiters: tuple[_Waiter, _Waiter] | None = None
        """For what is received, and for what is sent: it is held until it has arrived."""

    def send(self, tensors: Iterable[Tensor], rank: int, tag: int, what: str) -> None:
        """Begin to send a message; nothing waits for it, and its tensors must not change."""
        held = [one.detach().cpu().contiguous() for one in tensors]
        handles = [self._comm.send(one, rank, tag * MOST_PARTS + place) for place, one in enumerate(held)]
        self._threads()[1].put(Expected(what, held, handles))

    def expect(self, shapes: Sequence[tuple[torch.Size, torch.dtype]], rank: int, tag: int, what: str) -> Expected:
        """Ask for a message with tensors of these shapes."""
        assert len(shapes) <= MOST_PARTS, f"{what} has {len(shapes)} tensors"
        tensors = [torch.empty(size, dtype=dtype) for size, dtype in shapes]
        handles = [self._comm.receive(one, rank, tag * MOST_PARTS + place) for place, one in enumerate(tensors)]
        message = Expected(what, tensors, handles)
        self._threads()[0].put(message)
        return message

    def take(self, message: Expected) -> Sequence[Tensor] | None:
        """Wait for a message that was expected; None if a member was lost: then all others are lost too."""
        if self._await(message):
            return message.tensors
        self._forget()
        return None

    def _forget(self) -> None:
        """Leave all messages of this generation behind, with the threads that wait for them."""
        for waiter in self._waiters or ():
            waiter.put(None)
        self._waiters = None

    def _threads(self) -> tuple[_Waiter, _Waiter]:
        if self._waiters is None:
            self._waiters = _Waiter("cordee-receive"), _Waiter("cordee-send")
        return self._waiters

    def _await(self, message: Expected) -> bool:
        """Look once in a while whether a member was lost: gloo may not notice."""
        who = self._comm.membership
        began, lost = self._comm.meter.look(), False
        while not message.over.wait(LOOK_S / 2):
            self._comm.look()
            if lost:
                who.stuck = True  # gloo does not end this message: its group is left behind
                break
            lost = who.broken
            if time.perf_counter() - began > who.deadline_s:  # gloo has the same deadline, and may not keep it
                message.error = RuntimeError(f"{message.what}: no message came")
                break
        self._comm.meter.unblock(began)
        if message.error is not None and not who.broken:
            who.channel.at = f"{who.channel.at}, {message.what}"
            who.collective_failed(message.error, time.perf_counter() - began)
        return message.over.is_set() and message.error is None
