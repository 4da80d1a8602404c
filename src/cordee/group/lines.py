"""The connections of a generation: one `Comm` along each line of its mesh, and torch's own groups over the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cordee.core.errors import WorkersLost
from cordee.core.mesh import Mesh, Shape, lay_out
from cordee.group.channel import Channel
from cordee.group.comm import Comm
from cordee.group.membership import Membership
from cordee.group.messages import LEAVES, Unreached
from cordee.group.meter import Meter
from cordee.group.reach import Contact, Lookout, meet, other_hosts
from cordee.group.registered import Registered
from cordee.group.store import HubStore
from cordee.group.transport import gloo
from cordee.group.transport.hierarchy import open_hierarchy
from cordee.group.transport.memory import homes
from cordee.group.transport.nccl import open_nccl
from cordee.group.transport.shared import open_shared
from cordee.group.transport.slots import Leader, crews_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

PART_LOST = "a worker was lost, and with it a part of the model, without which the others cannot continue"


class Lines:
    """Through which members exchange tensors; formed anew in every generation."""

    def __init__(
        self, membership: Membership, meter: Meter, *, interface: str, device: str, backend: str, shape: Shape
    ) -> None:
        """`shape`: what a replica lies over; see `Team` for the rest."""
        self._membership = membership
        self._interface, self._device, self._backend = interface, device, backend
        self.shape, self.per_replica = shape, shape.size
        self._hosts: dict[int, str] = {}
        """The address of each member's host."""
        self.rate = 0.0
        """Of the slowest link between hosts, in bytes per second, if this worker was there when it was measured."""
        self._rates: dict[str, float] = {}
        """The same, by the address of the host before ours."""
        self.mesh = Mesh((((membership.worker,),),))
        """Which worker holds what in this generation."""
        # Two along the replicas, because the collectives of one must meet in one order everywhere. Layers communicate
        # within the forward and backward pass; a bucket of gradients is sent when it is full, which a replica without
        # samples, or without a gradient for some parameter, reaches at another moment.
        self.world = Comm(membership, meter)
        """All members: what commits."""
        self.sums = self.world if self.per_replica == 1 else Comm(membership, meter)
        """The replicas, for gradients."""
        self.layers = Comm(membership, meter)
        """The shares of a batch, for what layers exchange."""
        self.inside = Comm(membership, meter)
        """The workers that hold one replica together, stage by stage."""
        self.stages = self.inside if shape.size == shape.stages else Comm(membership, meter)
        """Of those, the ones that compute the same share in other stages, with the same slice of their layers."""
        self.slices = self.inside if shape.size == shape.slices else Comm(membership, meter)
        """Of those, the ones that compute the same share and hold slices of the same layers."""
        self.shards = self.inside if shape.size == shape.shards else Comm(membership, meter)
        """Those that hold the same slices together, each a part of their state."""
        each = (self.world, self.sums, self.layers, self.inside, self.stages, self.slices, self.shards)
        self._comms = tuple({id(one): one for one in each}.values())
        self._registered = Registered(membership, interface)

    def form(self, name: str, *, anew: bool) -> None:
        """Connect the members of this generation, each along its lines of the mesh; `RuntimeError` if one is lost.

        `name` is what this worker is called. `anew`: nothing rests on the mesh of a former generation.
        """
        who = self._membership
        self._hosts = {who.worker: ""}
        if who.size > 1:
            places = meet(who, self._interface, name, self._report)
            self._hosts = {worker: place.address for worker, place in zip(who.members, places, strict=True)}
            lookout = Lookout(other_hosts(places, self._interface), self._report)
            for comm in self._comms:
                comm.look = lookout.look
        if anew or self.per_replica == 1:
            self.mesh = lay_out(who.members, self._hosts, **self.shape._asdict())
        else:
            self.mesh = self.mesh.among(who.members)
        self._await_whole_replicas()
        self.world.among(who.members, self._hosts)
        self.inside.among(self.mesh.inside(who.worker), self._hosts)
        self.sums.among(self.mesh.along("replica", who.worker), self._hosts)
        self.layers.among(self.mesh.along("share", who.worker), self._hosts)
        column = f" {self.sums.members}" if self.per_replica > 1 else ""
        if column:
            self._connect(self.inside, f"inside {self.inside.members}")
            for axis, comm in (("stage", self.stages), ("slice", self.slices), ("shard", self.shards)):
                if comm is not self.inside:
                    comm.among(self.mesh.along(axis, who.worker), self._hosts)
                    self._connect(comm, f"{axis} {comm.members}")
            self._connect(self.world, "world")
        self._connect(self.sums, "sums" + column)
        self._connect(self.layers, f"layers {self.layers.members}" if column else "layers")
        self._connect_closely(column)
        for axis, comm in (("slices", self.slices), ("shards", self.shards)):
            if self._backend == "auto" and comm.size > 1:  # for activations, and for parameters
                self._share_memory([comm], f" {axis} {comm.members}")
        if who.broken:  # lost before all of these could be cut
            self.cut()

    def _await_whole_replicas(self) -> None:
        """Leave the run if this worker belongs to no whole replica; `RuntimeError` until all such have left."""
        self.leave_if_broken()
        if self.mesh.spares:
            raise RuntimeError(f"workers {self.mesh.spares} are about to leave")

    def leave_if_broken(self) -> None:
        """Leave the run for good if a worker of this replica was lost; `WorkersLost` if no replica is whole."""
        who = self._membership
        if self.per_replica == 1:
            return
        left = self.mesh.among(set(who.members) - who.channel.lost)
        if not left.replicas:
            raise WorkersLost(PART_LOST)
        if who.worker in {*left.spares, *self.mesh.spares} and isinstance(who.channel, Channel):
            who.channel.give_way(LEAVES)

    @property
    def hosts(self) -> dict[int, str]:
        """The address of each member's host; alone, or on loopback, all are on the same."""
        return {self._membership.worker: "", **self._hosts}

    def device_mesh(self) -> DeviceMesh:
        """The mesh as torch has it, over groups that a lost member releases; all members call this.

        After a regrouping, groups within a replica live on, and those between replicas are of no use. `RuntimeError` if
        a member is lost meanwhile: see `open_device_mesh`.
        """
        return self._registered.open(self.mesh, self._device)

    def close_device_mesh(self) -> None:
        """Forget what torch knows of it."""
        self._registered.close()

    def pace(self, rate: float) -> None:
        """Send sums no faster than the slowest link between hosts, of so many bytes per second."""
        self.rate = rate
        addresses = list(dict.fromkeys(self._hosts.values()))
        if len(addresses) > 1:  # every link of a ring carries the same, and gloo's ring goes to the rank before
            self._rates = {addresses[addresses.index(self._hosts[self._membership.worker]) - 1]: rate}
            for transport in (one for comm in self._comms for one in comm.transports):
                transport.pace(self._rates)

    def cut(self) -> None:
        """Release every collective that waits; called by another thread when a member is lost."""
        for comm in self._comms:
            comm.cut()
        self._registered.cut(self._membership.channel.lost if self.per_replica > 1 else None)

    def drop(self, *, for_good: bool = False) -> None:
        """This generation is over; groups of torch within a replica live on, unless `for_good`."""
        for comm in self._comms:
            comm.drop()
        if for_good or self.per_replica == 1:
            self._registered.close()

    def _connect(self, comm: Comm, purpose: str) -> None:
        """Form the group of gloo on which all other transports fall back."""
        if comm.size == 1:
            return
        group = gloo.Gloo(self._interface)
        comm.transports = (group,)  # known before it is formed, so that it can be cut meanwhile
        self._form(group, purpose, (comm.rank, comm.size))

    def _form(self, group: gloo.Gloo, purpose: str, place: tuple[int, int]) -> None:
        who = self._membership
        timeout_s = min(who.deadline_s, gloo.FORM_S * 2**who.tears)
        group.form(who.store(purpose), *place, (who.deadline_s, timeout_s), self._is_broken)
        group.pace(self._rates)

    def _connect_closely(self, column: str) -> None:
        """Faster transports between the replicas, where there are any."""
        if self.sums.size == 1:
            return
        who, place = self._membership, (self.sums.rank, self.sums.size)

        def store(purpose: str) -> HubStore:
            return who.store(purpose + column)

        nccl = open_nccl(store, place, self._device, self._backend, who.deadline_s, self._is_broken)
        if nccl is not None:
            self.sums.transports = (nccl, *self.sums.transports)
        if self._backend != "auto":
            return
        alike = [comm for comm in (self.sums, self.layers) if comm.members == self.sums.members]
        if crews := crews_of(self._share_memory(alike, column)):
            self._connect_hosts(crews, column)

    def _share_memory(self, comms: Sequence[Comm], column: str) -> list[str]:
        """Memory for these, which have the same members, if those are all on one host; the host of each."""
        who, (comm, *_) = self._membership, comms
        found = homes(who.store("homes" + column), comm.rank, comm.size)
        if len(set(found)) == 1 and self._backend == "auto":
            store = who.store("shared" + column)
            opened = open_shared(store, comm.rank, comm.size, self._is_broken, who.deadline_s)
            for one, shared in zip(comms, opened, strict=False):
                one.transports = (shared, *one.transports)
        return found

    def _connect_hosts(self, crews: Sequence[Sequence[int]], column: str) -> None:
        """Sums over hosts of several ranks; `crews` has those of each host."""
        who, place = self._membership, (self.sums.rank, self.sums.size)
        opened = open_hierarchy(who.store("memory" + column), place, crews, self._interface, who.deadline_s)
        if opened is None:
            return
        *others, group = self.sums.transports
        self.sums.transports = (*others, opened, group)
        if isinstance(opened.side, Leader):
            leaders = [crew[0] for crew in crews]
            self._form(opened.side.leaders, "leaders" + column, (leaders.index(place[0]), len(leaders)))

    def _report(self, place: Contact, reason: str) -> None:
        """The coordinator decides what follows from it."""
        self._membership.channel.send(Unreached(place.worker, reason))

    def _is_broken(self) -> bool:
        return self._membership.broken
