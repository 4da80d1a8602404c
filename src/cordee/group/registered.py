"""Groups of a generation that torch knows by name, so that `DeviceMesh`, DTensor and FSDP2 run over them.

torch keeps one default group per process and makes the groups of a mesh beside it, all by the backend that is
registered here: gloo, bound to this run's interface, with its sockets written down. So a lost member releases every
wait in them, and the next generation opens its own.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cordee.core.errors import UsageError
from cordee.core.mesh import Mesh
from cordee.group.membership import Membership
from cordee.group.transport.gloo import Gloo

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

BACKEND = "cordee"
_makers: list[Callable[[Any], Any]] = []
"""Makes a group for torch: of the generation that is open, if one is."""


class Registered:
    """What torch knows of one generation; nothing before `open`."""

    def __init__(self, membership: Membership, interface: str) -> None:
        """`interface` is the address that gloo binds to."""
        self._membership, self._interface = membership, interface
        self._groups: list[tuple[Gloo, frozenset[int]]] = []
        """With the workers that are in it."""
        self._mesh: DeviceMesh | None = None

    def open(self, mesh: Mesh, device: str) -> DeviceMesh:
        """This generation's mesh as torch has it: axes `replica`, `stage`, `shard`, `slice`. All members call this."""
        if self._mesh is not None:
            return self._mesh
        if dist.is_initialized():
            raise UsageError(
                "torch.distributed.init_process_group was called before: a model in slices needs torch's default "
                "group for itself. Leave that call out"
            )
        from torch.distributed.device_mesh import DeviceMesh  # a second of imports that only such runs pay for

        who = self._membership
        if not hasattr(dist.Backend, BACKEND.upper()):
            make = lambda options, _: _makers[0](options)  # noqa: E731
            dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu", "cuda"])
        _makers[:] = [self._make]
        dist.init_process_group(
            BACKEND,
            store=who.store("torch"),
            rank=who.rank,
            world_size=who.size,
            timeout=timedelta(seconds=who.deadline_s),
        )
        ranks = torch.tensor([[list(map(who.members.index, places)) for places in one] for one in mesh.replicas])
        ranks = ranks.view(*ranks.shape[:2], mesh.shards, -1)
        self._mesh = DeviceMesh(device.partition(":")[0], ranks, mesh_dim_names=("replica", "stage", "shard", "slice"))
        return self._mesh

    def _make(self, options: Any) -> Any:
        who, group = self._membership, Gloo(self._interface)
        workers = frozenset(who.members[rank] for rank in options.global_ranks_in_group)
        self._groups.append((group, workers))  # known before it is formed, so that it can be cut meanwhile
        # A store of its own: torch wraps the one that it was given, and gloo asks the wrapper for more than ours has.
        # Not by torch's number of the group: a worker that failed to make one before has counted further than others.
        alike = sum(there == workers for _, there in self._groups)
        store = who.store(f"torch {alike} {options.global_ranks_in_group}")
        timeouts_s = who.deadline_s, who.deadline_s
        group.form(store, options.group_rank, options.group_size, timeouts_s, lambda: who.broken)
        return group.group

    def cut(self, lost: AbstractSet[int] | None = None) -> None:
        """Release every wait in these groups, or in those with a `lost` worker; another thread calls this."""
        for group, workers in list(self._groups):
            if lost is None or not workers.isdisjoint(lost):
                group.cut()

    def close(self) -> None:
        """This generation is over: let torch forget its groups, also if not all of them were made."""
        if self._groups:
            self.cut()
            if dist.is_initialized():
                dist.destroy_process_group()
        self._mesh = None
        self._groups.clear()
        _makers.clear()
