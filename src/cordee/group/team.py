"""The workers of a run, and what they agree on.

Training is a sequence of *agreements*: the reduced gradient of a step, the reduced sums of an evaluation. Each one is
committed by all members or by none. A worker that lost a peer in the middle of agreement n regroups with the
survivors; if one of them had completed n already it hands the result over, otherwise all of them do n again, newly
shared. Nothing is ever raised into the user's code: a collective of a broken generation does nothing, the step it
belongs to is void, and `settle` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cordee.core.mesh import WHOLE, Shape
from cordee.group.channel import Channel, Unconnected
from cordee.group.comm import Handle
from cordee.group.lines import Lines
from cordee.group.membership import Membership
from cordee.group.messages import Go
from cordee.group.meter import Meter
from cordee.group.parts import SHARED_AT_ONCE, Part, in_parts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Team:
    """This worker among the workers of a run; alone, every operation is the identity."""

    def __init__(
        self,
        channel: Channel | None = None,
        *,
        interface: str = "127.0.0.1",
        deadline_s: float = 300.0,
        device: str = "cpu",
        backend: str = "auto",
        shape: Shape = WHOLE,
        grows: bool = False,
    ) -> None:
        """Alone without a channel. `interface` is the address that gloo binds to; `backend` is the plan's.

        One replica of the model lies over a `shape` of workers. `grows`: others may come in later. A worker
        that does so itself, as its channel says, is alone until it calls `enter`.
        """
        self.channel: Channel | Unconnected = channel or Unconnected()
        self.membership = Membership(self.channel, deadline_s)
        self.meter = Meter(paused_s=lambda: self.channel.paused_s)
        self.lines = Lines(
            self.membership, self.meter, interface=interface, device=device, backend=backend, shape=shape
        )
        self.world, self.sums = self.lines.world, self.lines.sums
        self.layers, self.inside = self.lines.layers, self.lines.inside
        self.stages, self.slices = self.lines.stages, self.lines.slices
        self.position = 0
        """Agreements committed."""
        self.steps = 0
        """Steps of a training committed, over all loops of a script."""
        self.on_regroup: list[Callable[[], None]] = []
        self._result: Sequence[Tensor] = ()
        """Of the last agreement, for a member that did not receive it."""
        self.grows = grows
        self.awaited = False
        """Whether workers wait to come in or are to leave, as all members agreed with the last step."""
        self.came: tuple[int, ...] = ()
        """Those who have come in, while they are being let in."""
        self.membership.outside = self.channel.joining
        self.channel.on_break = self.lines.cut
        if channel is not None and not self.channel.joining:
            self._regroup(())

    @property
    def replica(self) -> int:
        """The number of the replica that this worker holds, or holds a part of."""
        return self.sums.rank

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return self.sums.size

    @property
    def share(self) -> int:
        """The number of the share of a batch that this worker computes, or computes with others in slices."""
        return self.layers.rank

    @property
    def shares(self) -> int:
        """Over how many shares a batch is cut: as many as replicas, or more where one is sharded."""
        return self.layers.size

    @property
    def speaks(self) -> bool:
        """Whether this worker writes and reports for all."""
        return self.membership.rank == 0 and not self.membership.outside

    @property
    def alone(self) -> bool:
        """Whether this worker is the only one."""
        return self.membership.size == 1

    @property
    def sliced(self) -> bool:
        """Whether a replica lies over several workers."""
        return self.lines.per_replica > 1

    # ------------------------------------------------------------- agreements

    def settle(self, handles: Sequence[Handle], result: Sequence[Tensor], *, void: bool = False) -> bool:
        """Conclude the agreement whose collectives are `handles`: True if `result` now holds what all agreed on.

        `void` says that something this agreement rests on (a collective of the forward pass) failed already.
        False: no member has a result; regrouped, the caller computes it again with its new share.
        """
        complete = not void
        for handle in handles:
            complete = handle.wait() and complete
        if self.membership.size > 1 and not complete and not self.recover(result):
            return False
        self.position += 1
        self._result = result
        self.membership.tears = 0
        return True

    def agree(self, tensors: Sequence[Tensor]) -> bool:
        """Add these up over all shares, as one agreement; of one that several workers compute, the first counts."""
        if self.slices.rank > 0 or self.stages.rank > 0:
            for tensor in tensors:
                tensor.zero_()
        return self.settle([self.world.sum(tensor) for tensor in tensors], tensors)

    def share_from_first(self, tensors: Sequence[Tensor]) -> bool:
        """Give all members the first member's tensors, of whatever type and layout, in place, some at a time.

        False if the first member was lost meanwhile, so that these may be another one's.
        """
        first = self.membership.members[0]
        for part in in_parts(tensors, SHARED_AT_ONCE):
            self._share(part)
        return self.membership.members[0] == first

    def _share(self, part: Part) -> None:
        """One agreement: the first member's bytes on all members."""
        if self.alone:
            self.settle((), ())
            return
        while True:  # not into our own: of what a lost member sent, a part may have come
            raw = [piece.clone() if self.speaks else torch.empty_like(piece) for piece in part.own]
            # A broadcast ends here before it has reached all members; a sum does not, which makes it an agreement.
            handles = [*(self.world.broadcast(piece, 0) for piece in raw), self.world.sum(torch.zeros(1))]
            if self.settle(handles, raw):  # kept, in case that a member needs it handed over
                part.put(raw)
                return

    def finish(self) -> bool:
        """Leave together: True when no member has anything left to agree on, False after a regrouping."""
        if self.membership.leave():
            return True
        self.recover(())
        return False

    def close(self) -> None:
        """Release the transports and the channel."""
        self.lines.drop(for_good=True)
        self.channel.close()

    # ------------------------------------------------------------- coming in

    def enter(self) -> None:
        """Come in to the others that train already, as soon as they let this worker in."""
        self._regroup(())

    def admit(self) -> tuple[int, ...]:
        """Let workers in that wait for it; every member calls this after the same agreement. Those who came.

        Those that were asked to leave do so: `membership.left` is true on them, and nothing of the run is theirs.
        """
        self.recover((), admits=True)
        came, self.came = self.came, ()
        return came

    # ------------------------------------------------------------- regrouping

    def recover(self, awaited: Sequence[Tensor], *, admits: bool = False) -> bool:
        """Regroup; True if `awaited` now holds the result that a peer had already and this worker had not.

        `admits`: nothing is awaited, and workers that wait outside may come in.
        """
        before, began = self.position, time.perf_counter()
        handed_over = self._regroup(awaited, admits=admits)
        if self.membership.left:
            return False
        lost_s = time.perf_counter() - began
        self.meter.blocked_s += lost_s
        self.meter.waited_s += lost_s
        for callback in self.on_regroup:
            callback()
        assert self.position == before
        return handed_over

    def _regroup(self, awaited: Sequence[Tensor], *, admits: bool = False) -> bool:
        comes_in = self.membership.outside
        while True:
            if not admits:  # otherwise a peer may still be receiving what is under way, until all are ready
                self.lines.drop()
            go = self.membership.advance(self.position, admits=admits)
            self.lines.drop(for_good=self.membership.left)
            if self.membership.left:
                return False
            if comes_in:
                self.position, comes_in = go.target, False
            if admits and go.admits:
                self.came, admits = go.newcomers, False
            try:
                self.lines.form(self.channel.name, anew=go.target == 0)
                handed_over = self._hand_over(go, awaited)
                if not admits:  # otherwise a member was behind, and comes to this point now
                    return handed_over
            except RuntimeError as error:  # another member was lost while we regrouped
                self.membership.collective_failed(error, 0.0)

    def _hand_over(self, go: Go, awaited: Sequence[Tensor]) -> bool:
        """Give the last result to the members that did not receive it; True if this worker is one of them."""
        if go.giver is None:
            return False
        behind = self.position < go.target
        if not behind and self.membership.worker != go.giver:  # has it already, but a broadcast is for all
            awaited = [torch.empty_like(tensor) for tensor in self._result]
        for tensor in self._result if self.membership.worker == go.giver else awaited:
            if not self.world.broadcast(tensor, go.members.index(go.giver)).wait():
                raise RuntimeError("a member was lost during the hand-over")
        return behind


def open_device_mesh(team: Team) -> DeviceMesh:
    """The mesh of a team as torch has it, as one agreement: if a member is lost, the others open theirs anew."""
    while True:
        mesh, opened = None, torch.zeros(1)
        try:
            mesh = team.lines.device_mesh()
        except RuntimeError as error:
            team.membership.collective_failed(error, 0.0)
        handles = [] if mesh is None else [team.world.sum(opened)]
        if team.settle(handles, [opened], void=mesh is None):
            assert mesh is not None
            return mesh
        team.lines.close_device_mesh()
