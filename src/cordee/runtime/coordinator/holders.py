"""Which parameter servers a run has, and which of them holds what: a frozen value, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cordee.core.world import World
from cordee.group.messages import FIRST_SERVER, Holders, Holding, Place, Seat


@dataclass(frozen=True)
class Servers:
    """The parameter servers of a run, by the shard that each was started for."""

    shards: tuple[Holding, ...] = ()
    """Which servers hold each shard, of those that have come."""
    seats: tuple[tuple[int, Seat], ...] = ()
    """All that were ever started: for which shard."""
    expected: int = 0
    """How many have to come before the first view is told."""
    view: int = 0
    storing: tuple[int, ...] = ()
    """Hosts that have no workers: servers are rather there."""

    @classmethod
    def of(cls, shards: int, *, backups: bool, workers: Sequence[int], first_holds: bool = True) -> Servers:
        """At the start of a run on hosts with so many workers each: a backup is on another host if there is one.

        `first_holds`: whether the coordinator's host may hold parameters.
        """
        nodes = tuple(range(0 if first_holds else 1, len(workers)))
        storing = tuple(node for node in nodes if not workers[node])
        servers, first = cls((Holding(),) * shards, storing=storing), storing or nodes
        others = tuple(node for node in nodes if node not in first) if len(first) == 1 else ()
        for there in (first, others or (*first[1:], first[0])) if backups else (first,):
            for shard in range(shards):
                servers = servers.start(shard, there[shard % len(there)], len(workers))[0]
        return replace(servers, expected=len(servers.seats))

    def start(self, shard: int, node: int, nodes: int) -> tuple[Servers, Seat]:
        """One more server for a shard, on a host."""
        seat = Seat(FIRST_SERVER + len(self.seats), World(0, 1, 0, 1, node, nodes, source="cordee"))
        return replace(self, seats=(*self.seats, (shard, seat))), seat

    def came(self, place: Place) -> Servers:
        """A server listens at its place: it is the first holder of its shard, or its backup, or becomes that."""
        shard = self.shard_of(place.number)
        holding = self.shards[shard]
        if self.view and holding.first is None:  # it begins with the log of those that were lost
            holding = Holding(place)
        elif self.view:
            holding = Holding(holding.first, holding.backup, place)
        else:
            holding = Holding(*sorted([*holders_of(holding), place], key=lambda one: one.number))
        return self._with(shard, holding)._published()

    def shard_of(self, number: int) -> int:
        """For which shard a server was started."""
        return next(shard for shard, seat in self.seats if seat.worker == number)

    def seat_of(self, number: int) -> Seat | None:
        """Of a server that was started; None if there is no such server."""
        return next((seat for _, seat in self.seats if seat.worker == number), None)

    def _published(self) -> Servers:
        """The first view waits until all have come; from then on each change is a new one."""
        here = sum(one is not None for holding in self.shards for one in (holding.first, holding.backup))
        return replace(self, view=self.view + 1) if self.view or here == self.expected else self

    def lost(self, number: int) -> tuple[Servers, int | None]:
        """A server is gone: its backup takes its place. The shard that it held; None if it held none."""
        for shard, holding in enumerate(self.shards):
            if number not in [one.number for one in holders_of(holding)]:
                continue
            first, backup, filling = (None if one and one.number == number else one for one in _three(holding))
            if first is not None:
                left = Holding(first, backup, filling)
            else:  # one that was being filled by it has nothing; it begins with the log
                left = Holding(backup, None, filling) if backup is not None else Holding(filling)
            return replace(self._with(shard, left), view=self.view + 1 if self.view else 0), shard
        return self, None

    def is_last(self, number: int) -> bool:
        """Whether no other server has all that this one holds."""
        return any(
            holding.first is not None and holding.first.number == number and holding.backup is None
            for holding in self.shards
        )

    def filled(self, number: int) -> Servers:
        """A server has all that the first holder of its shard has."""
        for shard, holding in enumerate(self.shards):
            if holding.filling is not None and holding.filling.number == number:
                return replace(self._with(shard, Holding(holding.first, holding.filling)), view=self.view + 1)
        return self

    def _with(self, shard: int, holding: Holding) -> Servers:
        return replace(self, shards=(*self.shards[:shard], holding, *self.shards[shard + 1 :]))

    def told(self) -> Holders:
        """What workers and servers are told."""
        return Holders(self.view, list(self.shards))


def _three(holding: Holding) -> Sequence[Place | None]:
    return holding.first, holding.backup, holding.filling


def holders_of(holding: Holding) -> list[Place]:
    """Those that there are."""
    return [one for one in _three(holding) if one is not None]
