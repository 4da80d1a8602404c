"""Collectives among the members of a generation, over the transports that they have.

Nothing is raised when a peer is lost: a collective of a broken generation does nothing, and `wait` returns False or
None. Collectives of one `Comm` are begun in the same order by all members.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cordee.group.membership import Membership
from cordee.group.meter import Meter
from cordee.group.transport.seam import LostInMessage, Sent, Transport, Work

_STAMP = 8
"""Bytes of a time of day before what is gathered."""
_POWERS = [1 << power for power in range(24)]
_LEAST = 4096
"""Smaller messages take no time that is worth hiding."""


class Comm:
    """Collectives among some members of a generation, in an order of their own; alone, each is the identity."""

    def __init__(self, membership: Membership, meter: Meter) -> None:
        """Of this worker alone, until `among` names others."""
        self.membership, self.meter = membership, meter
        self.transports: tuple[Transport, ...] = ()
        """Asked in this order whether they carry a tensor."""
        self.look: Callable[[], None] = lambda: None
        """Called at least once per second of a wait."""
        self.members: tuple[int, ...] = (membership.worker,)
        self.rank, self.size = 0, 1
        """This worker's place among the members, and how many there are."""
        self._hosts: tuple[str, ...] = ("",)
        """Where each member is."""

    def among(self, members: tuple[int, ...], hosts: Mapping[int, str] | None = None) -> None:
        """From now on these are the members, this worker one of them; without `hosts` all are on one."""
        self.members = members
        self.rank, self.size = members.index(self.membership.worker), len(members)
        self._hosts = tuple("" if hosts is None else hosts[one] for one in members)

    @property
    def shares_memory(self) -> bool:
        """Whether what fits there goes through memory that all members share."""
        return any(transport.within_host for transport in self.transports)

    @property
    def stations(self) -> int:
        """How many ranks a large sum is passed on by, in a ring: one per host where those add up for the others."""
        return next((one.stations for one in self.transports if one.stations), self.size)

    def sum(self, tensor: Tensor, *, encoded: bool = False) -> Handle:
        """Begin to add `tensor` up over all members, in place; `encoded`: it stands for another, see `instead_of`."""
        tensor = _as_real(tensor)
        return self._begin("sum", self._of_sum(tensor), encoded, tensor)

    def gather(self, tensor: Tensor, *, encoded: bool = False) -> Gathering:
        """Begin to gather the `tensor` of every member, all of one shape; `encoded` as in `sum`."""
        if self.size == 1:
            return Gathering(self, AT_ONCE, [tensor], tensor, 0.0)
        arrived = self.membership.clock()
        payload = _stamped(tensor, arrived)
        parts = [torch.empty_like(payload) for _ in range(self.size)]
        sent = self._sent(payload.nbytes * (self.size - 1), self._next)
        handle = self._begin("gather", sent, encoded, payload, parts)
        return Gathering(self, handle, parts, tensor, arrived)

    def gather_into(self, tensor: Tensor, parts: Sequence[Tensor]) -> Handle:
        """Begin to copy the `tensor` of each member into its part; the time at which they came does not travel."""
        return self._begin("gather", self._sent(tensor.nbytes * (self.size - 1), self._next), False, tensor, parts)

    def broadcast(self, tensor: Tensor, root: int) -> Handle:
        """Begin to give all members the `tensor` of rank `root`, in place."""
        tensor = _as_real(tensor)
        sent = self._sent(tensor.nbytes, *after(self.rank, root, self.size))
        return self._begin("broadcast", sent, False, tensor, root)

    def send(self, tensor: Tensor, rank: int, tag: int) -> Handle:
        """Begin to send `tensor` to one member."""
        return self._begin("send", self._sent(tensor.nbytes, rank), False, tensor, rank, tag)

    def receive(self, tensor: Tensor, rank: int, tag: int) -> Handle:
        """Begin to receive `tensor` from one member."""
        return self._begin("receive", Sent(0, 0), False, tensor, rank, tag)

    def instead_of(self, tensor: Tensor) -> None:
        """Count what a sum of `tensor` would have sent: messages that are `encoded` are sent in its place."""
        self.meter.bytes_plain += sum(self._of_sum(tensor)) if self.size > 1 else 0

    def _of_sum(self, tensor: Tensor) -> Sent:
        """Bytes that this member sends, to add up such a tensor: as its transport says, or in a ring of all."""
        said = (transport.sends(tensor) for transport in self.transports)
        in_ring = 2 * tensor.nbytes * (self.size - 1) // self.size
        return next((one for one in said if one is not None), self._sent(in_ring, self._next))

    def _sent(self, nbytes: int, *to: int) -> Sent:
        """So many bytes to each of these members."""
        near = nbytes * sum(self._hosts[rank] == self._hosts[self.rank] for rank in to)
        return Sent(near, nbytes * len(to) - near)

    @property
    def _next(self) -> int:
        """The member of the ring to which this one sends."""
        return (self.rank - 1) % self.size

    def _begin(self, collective: str, sent: Sent, encoded: bool, *given: Any) -> Handle:
        """By the first transport that carries it; this worker sends so many bytes for it."""
        if self.size == 1:
            return AT_ONCE
        if self.membership.broken:
            return NEVER
        try:
            for transport in self.transports:
                work = getattr(transport, collective)(*given)
                if work is not None:
                    for nbytes, near in ((sent.near, True), (sent.far, transport.within_host)):
                        self.meter.count(nbytes, near=near, plain=0 if encoded else nbytes)
                    if sum(sent) >= _LEAST:
                        self.meter.begun(work.has_ended)
                    return Handle(self, work)
        except RuntimeError:  # a member was lost
            pass
        return NEVER

    def cut(self) -> None:
        """Release every wait; called by another thread when a member is lost."""
        for transport in self.transports:
            transport.cut()

    def drop(self) -> None:
        """This generation is over: forget its transports."""
        self.cut()
        for transport in self.transports:
            transport.close(stuck=self.membership.stuck)
        self.transports = ()
        self.meter.clear()

    def wait(self, work: Work) -> bool:
        """For one collective; see `Handle.wait`."""
        if self.membership.stuck:
            return False
        started = self.meter.look()
        try:
            work.wait(self._is_broken)
            return True
        except LostInMessage:
            self.membership.stuck = True
            return False
        except RuntimeError as error:
            self.membership.collective_failed(error, time.perf_counter() - started)
            return False
        finally:
            self.meter.unblock(started)

    def _is_broken(self) -> bool:
        self.look()
        return self.membership.broken


class Handle:
    """A collective that was begun; without a `Comm`, one that ended at once, or never will."""

    __slots__ = ("_comm", "_ended", "_work")

    def __init__(self, comm: Comm | None, work: Work | None, *, ended: bool = False) -> None:
        """Made by `Comm`."""
        self._comm, self._work, self._ended = comm, work, ended

    def wait(self) -> bool:
        """Until its result is here; False if a member was lost before that."""
        if self._work is None or self._comm is None:
            return self._ended
        return self._comm.wait(self._work)

    def wait_apart(self) -> None:
        """The same on a thread that is not the worker's own, which no meter counts; `RuntimeError` if one was lost."""
        if self._work is not None:
            self._work.wait(lambda: False)
        elif not self._ended:
            raise RuntimeError("a member was lost")

    def may_commit(self) -> bool:
        """Whether a sum that commits may follow. Waits only for a transport that does not notice lost peers itself."""
        return (self._work is not None and self._work.ends_by_itself) or self.wait()


NEVER = Handle(None, None)
"""Of a broken generation."""
AT_ONCE = Handle(None, None, ended=True)
"""Of a worker alone."""


@dataclass(frozen=True)
class Gathering:
    """A gather that was begun. The time at which each member came travels along."""

    comm: Comm
    handle: Handle
    parts: list[Tensor]
    tensor: Tensor
    arrived: float

    def wait(self) -> list[Tensor] | None:
        """The tensors of all members, in rank order; None if one was lost."""
        if len(self.parts) == 1:
            return self.parts
        meter, blocked_before = self.comm.meter, self.comm.meter.blocked_s
        if not self.handle.wait():
            return None
        if not self.tensor.is_cpu:  # no time travels along
            return self.parts
        latest = max(float(part[:_STAMP].view(torch.float64)) for part in self.parts)
        # A worker that computed between begin and wait has not waited: only what it was blocked for counts.
        meter.waited_s += min(max(0.0, latest - self.arrived), meter.blocked_s - blocked_before)
        return [part[_STAMP:].view(self.tensor.dtype).reshape(self.tensor.shape) for part in self.parts]


def after(rank: int, root: int, size: int) -> list[int]:
    """The members to which this one passes on what `root` broadcasts, as gloo does: along a binomial tree."""
    place = (rank - root) % size
    lowest = place & -place or size  # the bit that it was reached by
    return [(place + bit + root) % size for bit in _POWERS if bit < lowest and place + bit < size]


def _stamped(tensor: Tensor, arrived: float) -> Tensor:
    """The bytes of a time and of `tensor`; on a GPU `tensor` alone."""
    if not tensor.is_cpu:
        return tensor
    stamp = torch.tensor([arrived], dtype=torch.float64).view(torch.uint8)
    return torch.cat([stamp, tensor.reshape(-1).view(torch.uint8)])


def _as_real(tensor: Tensor) -> Tensor:
    """The same memory as real numbers: gloo has no complex types."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
