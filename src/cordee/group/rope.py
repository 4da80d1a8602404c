"""The process group of this generation, and what happens to it when a peer is lost.

Training is a sequence of *agreements*: the reduced gradient of a step, the reduced sums of an evaluation. Each one is
committed by everybody or by nobody. A worker that lost a peer in the middle of agreement n regroups with the
survivors; if one of them had completed n already it hands the result over, otherwise all of them do n again, newly
shared. Nothing is ever raised into the user's code: a collective on a broken rope does nothing, the step it belongs
to is void, and `settle` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cordee.core.errors import CordeeError, WaitedTooLong
from cordee.group import form, nccl
from cordee.group.channel import Channel
from cordee.group.form import as_real, make_gloo, unless_broken
from cordee.group.gathering import Gathering, stamped
from cordee.group.parts import SHARED_AT_ONCE, Part, in_parts
from cordee.group.patience import Stuck, await_work, keep_for_ever
from cordee.group.reach import Lookout, meet
from cordee.group.roster import Go
from cordee.group.shared import Shared, open_shared
from cordee.group.sockets import open_sockets, seal, shut
from cordee.group.store import HubStore

MOST_TEARS = 3
"""How often a collective may fail in one agreement, though nobody was lost, before we call it an error."""


class Rope:
    """This worker's place among the workers of a run; alone, every operation is the identity."""

    def __init__(
        self,
        channel: Channel | None = None,
        *,
        interface: str = "127.0.0.1",
        deadline_s: float = 300.0,
        device: str = "cpu",
        backend: str = "auto",
    ) -> None:
        """Alone without a channel. `interface` is the address that gloo binds to; `backend` is the plan's."""
        self.channel = channel
        self.worker = channel.worker if channel else 0
        self.members: tuple[int, ...] = (self.worker,)
        self.generation = 0
        self.position = 0
        """Agreements committed."""
        self.steps = 0
        """Steps of a training committed, over all loops of a script."""
        self.deadline_s = deadline_s
        self.blocked_s = 0.0
        """Time spent in collectives, all in all: waiting for members that come later, and communication."""
        self.waited_s = 0.0
        """The part of it in which we are known to have waited for others."""
        self.bytes_sent = 0
        self.on_regroup: list[Callable[[], None]] = []
        self._interface, self._device, self._backend = interface, device, backend
        self._held: Sequence[Tensor] = ()
        # Two groups, because collectives of one group must meet in one order everywhere. Layers gather within the
        # forward and backward pass; a bucket of gradients is sent when it is full, which a replica without samples,
        # or without a gradient for some parameter, reaches at another moment. For the same reason each of them has
        # memory of its own among the members of one host: `_shared` for the sums, `_near` for the layers.
        self._group: Any = None
        self._layers: Any = None
        self._nccl: Any = None
        self._shared: Shared | None = None
        self._near: Shared | None = None
        self._sockets_before: dict[int, str] | None = None
        self._sockets: dict[int, str] = {}
        self._lookout = Lookout((), "", print)
        self.stuck = False
        """Whether a thread of a group waits for somebody who was lost: such a group cannot be taken apart."""
        self._tears = 0
        if channel is not None:
            channel.on_break = self._free
            self._regroup(())

    @property
    def rank(self) -> int:
        """Our place among the members."""
        return self.members.index(self.worker)

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.members)

    @property
    def shares_memory(self) -> bool:
        """Whether sums go through memory that all members share."""
        return self._shared is not None

    @property
    def broken(self) -> bool:
        """Whether a member of this generation was lost."""
        return self.channel is not None and self.channel.is_broken(self.generation)

    # ------------------------------------------------------------- collectives

    def start_sum(self, tensor: Tensor) -> Any:
        """Begin to add `tensor` up over all members, in place; None if there is nobody to ask."""
        if self._group is None or self.broken:
            return None
        tensor = as_real(tensor)
        self.bytes_sent += 2 * tensor.nbytes * (self.size - 1) // self.size
        group = self._nccl if self._nccl is not None and tensor.is_cuda else self._group
        try:
            if self._shared is not None and self._shared.fits(tensor):
                return self._shared.post(tensor)
            return group.allreduce([tensor])
        except RuntimeError:
            return None

    def complete(self, works: Sequence[Any]) -> bool:
        """What NCCL began is done here; False if somebody was lost before that. gloo's own works say so themselves."""
        if self._nccl is None:
            return True
        began = time.perf_counter()
        try:
            return nccl.complete(works, lambda: self.broken)
        finally:
            self.blocked_s += time.perf_counter() - began

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """Everybody's `tensor` (all of one shape), in rank order; None on a broken rope."""
        if self.size == 1:
            return [tensor]
        gathering = self.start_gather(tensor)
        return None if gathering is None else self.gathered(gathering)

    def start_gather(self, tensor: Tensor) -> Gathering | None:
        """Begin to gather everybody's `tensor`; None on a broken rope, or alone."""
        if self._group is None or self.broken:
            return None
        arrived = self.clock()
        payload = stamped(tensor, arrived)
        parts = [torch.empty_like(payload) for _ in self.members]
        self.bytes_sent += payload.nbytes * (self.size - 1)
        try:
            if self._near is not None and self._near.fits(payload):
                work = self._near.post(payload, parts)
            else:
                work = self._layers.allgather([parts], [payload])
        except RuntimeError:
            return None
        return Gathering(work, parts, tensor, arrived)

    def gathered(self, gathering: Gathering) -> list[Tensor] | None:
        """What `start_gather` began; None if it did not come to its end."""
        blocked_before = self.blocked_s
        if not self.wait(gathering.work):
            return None
        # Alone with its work between start and wait, a worker has not waited: only what it was blocked for counts.
        late = max(0.0, gathering.latest() - gathering.arrived)
        self.waited_s += min(late, self.blocked_s - blocked_before)
        return gathering.unpacked()

    def add_up(self, tensor: Tensor) -> bool:
        """Add `tensor` up over all members within a pass through a model, in place; False on a broken rope."""
        if self._layers is None or self.broken:
            return False
        self.bytes_sent += 2 * tensor.nbytes * (self.size - 1) // self.size
        try:
            near = self._near is not None and self._near.fits(tensor)
            work = self._near.post(tensor) if near else self._layers.allreduce([tensor])  # type: ignore[union-attr]
        except RuntimeError:
            return False
        return self.wait(work)

    def clock(self) -> float:
        """The time of day, as the hub has it."""
        return time.time() + (self.channel.clock_offset_s if self.channel is not None else 0.0)

    def wait(self, work: Any) -> bool:
        """Wait for one collective; False if it did not come to its end."""
        if self.stuck:
            return False
        started = time.perf_counter()
        try:
            self._await(work)
            return True
        except Stuck:
            return False
        except RuntimeError as error:
            self._ponder(error, time.perf_counter() - started)
            return False
        finally:
            self.blocked_s += time.perf_counter() - started

    def _await(self, work: Any) -> None:
        try:
            await_work(work, self._look)
        except Stuck:
            self.stuck = True
            raise

    def _look(self) -> bool:
        self._lookout.look()
        return self.broken

    # ------------------------------------------------------------- agreements

    def settle(self, works: Sequence[Any], result: Sequence[Tensor], *, void: bool = False) -> bool:
        """Conclude the agreement whose collectives are `works`: True if `result` now holds what all agreed on.

        `void` says that something this agreement rests on (a collective of the forward pass) failed already.
        False: nobody has a result; regrouped, the caller computes it again with its new share.
        """
        complete = not void
        for work in works:
            complete = (work is not None and self.wait(work)) and complete
        if self.size > 1 and not complete and not self.recover(result):
            return False
        self.position += 1
        self._held = result
        self._tears = 0
        return True

    def agree(self, tensors: Sequence[Tensor]) -> bool:
        """Add these up over all members, as one agreement."""
        if self.size == 1:
            return self.settle((), tensors)
        works = [self.start_sum(tensor) for tensor in tensors]
        return self.settle(works, tensors)

    def share_from_first(self, tensors: Sequence[Tensor]) -> bool:
        """Give all members the first member's tensors, of whatever type and layout, in place, some at a time.

        False if the first member was lost meanwhile, so that these may be another one's.
        """
        first = self.members[0]
        for part in in_parts(tensors, SHARED_AT_ONCE):
            self._share(part)
        return self.members[0] == first

    def _share(self, part: Part) -> None:
        """One agreement: the first member's bytes on all members."""
        if self.size == 1:
            self.settle((), ())
            return
        while True:  # not into our own: of what a lost member sent, a part may have come
            raw = [one.clone() if self.rank == 0 else torch.empty_like(one) for one in part.own]
            # A broadcast ends here before it has reached all members; a sum does not, which makes it an agreement.
            works = [*(self._start_broadcast(one, 0) for one in raw), self.start_sum(torch.zeros(1))]
            if self.settle(works, raw):  # held, in case that a member needs it handed over
                part.put(raw)
                return

    def finish(self) -> bool:
        """Leave together: True when nobody has anything left to agree on, False after a regrouping."""
        if self.channel is None:
            return True
        if self.channel.finish(self.generation, self.deadline_s):
            return True
        self.recover(())
        return False

    def close(self) -> None:
        """Release the process group and the channel."""
        self._drop()
        if self.channel is not None:
            self.channel.close()

    # ------------------------------------------------------------- regrouping

    def recover(self, awaited: Sequence[Tensor]) -> bool:
        """Regroup; True if `awaited` now holds the result that a peer had already and we had not."""
        before, began = self.position, time.perf_counter()
        handed_over = self._regroup(awaited)
        lost_s = time.perf_counter() - began
        self.blocked_s += lost_s
        self.waited_s += lost_s
        for callback in self.on_regroup:
            callback()
        assert self.position == before
        return handed_over

    def _regroup(self, awaited: Sequence[Tensor]) -> bool:
        assert self.channel is not None
        while True:
            self._drop()
            go = self.channel.next_generation(self.generation, self.position, self.deadline_s)
            try:
                self._form(go)
                return self._hand_over(go, awaited)
            except RuntimeError as error:  # somebody else was lost while we regrouped
                self._ponder(error, 0.0)

    def _form(self, go: Go) -> None:
        assert self.channel is not None
        self.generation, self.members = go.generation, go.members
        if self.size == 1:
            return
        self._lookout = self._meet(self.channel)
        self._sockets_before = open_sockets()
        self._group, self._layers = self._make_group("sums"), self._make_group("layers")
        self._sockets = {fd: inode for fd, inode in open_sockets().items() if self._sockets_before.get(fd) != inode}
        self._sockets_before = None
        seal(self._sockets, self._interface)
        self._nccl = self._make_nccl()
        if self._backend == "auto":
            opened = open_shared(self._store("shared"), self.rank, self.size, lambda: self.broken, self.deadline_s)
            self._shared, self._near = opened or (None, None)
        if self.broken:  # lost while the sockets were not yet written down
            shut(self._sockets)

    def _store(self, purpose: str) -> HubStore:
        assert self.channel is not None
        return HubStore(self.channel, self.generation, self.deadline_s, purpose)

    def _meet(self, channel: Channel) -> Lookout:
        others = meet(self._store("reach"), self.rank, self.size, self._interface, channel.name)
        return Lookout(others, channel.name, lambda message: channel.post("warning", {"message": message}))

    def _make_group(self, purpose: str) -> Any:
        make = partial(make_gloo, self._store(purpose), self.rank, self.size, self._interface, self.deadline_s)
        return unless_broken(make, lambda: self.broken, min(self.deadline_s, form.FORM_S * 2**self._tears))

    def _make_nccl(self) -> Any:
        """A group for what lies on GPUs, if all members have one to themselves; None otherwise."""
        mine = nccl.identity(self._device, self._backend)
        identities = nccl.identities(self._store("devices"), self.rank, self.size, mine, self._backend)
        if not nccl.usable(identities):
            return None
        make = partial(nccl.make, self._store("nccl"), self.rank, self.size, self.deadline_s)
        return unless_broken(make, lambda: self.broken, self.deadline_s)

    def _hand_over(self, go: Go, awaited: Sequence[Tensor]) -> bool:
        if go.giver is None:
            return False
        behind = self.position < go.target
        if not behind and self.worker != go.giver:  # has it already, but a broadcast is for all
            awaited = [torch.empty_like(tensor) for tensor in self._held]
        for tensor in self._held if self.worker == go.giver else awaited:
            self._await(self._start_broadcast(tensor, go.members.index(go.giver), force=True))
        return behind

    def _start_broadcast(self, tensor: Tensor, root: int, *, force: bool = False) -> Any:
        if self._group is None or (self.broken and not force):
            return None
        options = dist.BroadcastOptions()
        options.rootRank = root
        tensor = as_real(tensor)
        self.bytes_sent += tensor.nbytes
        try:
            return self._group.broadcast([tensor], options)
        except RuntimeError:
            if force:
                raise
            return None

    def _ponder(self, error: RuntimeError, waited_s: float) -> None:
        """A collective failed: was somebody lost? Then all is well. Otherwise ask everybody to regroup, a few times."""
        assert self.channel is not None
        if waited_s >= 0.95 * self.deadline_s:
            self.channel.stuck(self.channel.at)
            raise WaitedTooLong(
                f"worker {self.worker} waited {waited_s:.0f} s for its peers ({self.channel.at})"
            ) from error
        if self.channel.await_break(self.generation, 2.0):
            return
        self._tears += 1
        if self._tears > MOST_TEARS:
            raise CordeeError(
                f"worker {self.worker}: a collective keeps failing though no peer was lost: {error}"
            ) from error
        self.channel.torn(self.generation)
        self.channel.await_break(self.generation, self.deadline_s)

    def _free(self) -> None:
        """Called by the channel's thread when a peer is lost: let go of every collective that waits for it."""
        before = self._sockets_before
        if before is not None:
            self._sockets = {fd: inode for fd, inode in open_sockets().items() if before.get(fd) != inode}
        shut(self._sockets)
        if self._nccl is not None:
            self._nccl.abort()

    def _drop(self) -> None:
        self._sockets_before = None
        shut(self._sockets)
        self._sockets = {}
        if self.stuck:
            keep_for_ever(self._group, self._layers)
            self.stuck = False
        self._group = self._layers = self._nccl = self._shared = self._near = None
