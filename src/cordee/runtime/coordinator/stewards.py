"""The hub's side of parameter servers: keeps which of them hold what, and tells all peers when that changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from cordee.group.messages import Evicted, Place
from cordee.runtime.coordinator.holders import Servers, holders_of
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.policy import server_in_place_of
from cordee.runtime.coordinator.server import Peer, Server
from cordee.runtime.notices import ServerLost, ServersHold


class Stewards:
    """The parameter servers of a run; called by the thread of the hub's server."""

    def __init__(self, server: Server, notify: Callable[[int, object], None]) -> None:
        """None are expected, until `expect` is called before they start."""
        self._server, self._notify = server, notify
        self.servers, self._persist = Servers(), False
        self._lost: set[int] = set()
        self._gone: set[int] = set()
        """The node numbers of hosts that left."""

    def known(self, run: Known) -> Known:
        """The run, with its servers as they are."""
        return replace(run, servers=self.servers, persist=self._persist, lost_servers=frozenset(self._lost))

    def restore(self, known: Known) -> None:
        """What the coordinator before this one knew."""
        self.servers, self._persist = known.servers, known.persist
        self._lost = set(known.lost_servers)

    def expect(self, servers: Servers, *, persist: bool) -> None:
        """These are about to be started; what they `persist` outlives them."""
        self.servers, self._persist = servers, persist

    def awaits(self, number: int) -> bool:
        """Whether a server with this number was started, and not lost."""
        return number not in self._lost and self.servers.seat_of(number) is not None

    def brief(self, peer: Peer) -> None:
        """Tell a worker or a server that comes later."""
        if self.servers.view:
            self._server.tell(peer, self.servers.told())

    def came(self, peer: Peer, place: Place) -> None:
        """A server listens there; one that is known already has come back."""
        if any(place.number == one.number for holding in self.servers.shards for one in holders_of(holding)):
            self.brief(peer)
        else:
            self._change(self.servers.came(place))

    def filled(self, number: int) -> None:
        """A server has all that the first holder of its shard has."""
        self._change(self.servers.filled(number))

    def lost(self, number: int, reason: str, host: str) -> None:
        """A server is gone: another one takes its role, and one more is started."""
        seat = self.servers.seat_of(number)
        if seat is None or number in self._lost:
            return
        self._lost.add(number)
        peer = self._server.drop(number, Evicted(reason), "server")
        host = peer.host if peer is not None else host
        left, _ = self.servers.lost(number)
        left, new = server_in_place_of(left, number, self._gone)
        shard, ends = self.servers.shard_of(number), self.servers.is_last(number) and not self._persist
        self._change(left, ServerLost(shard, host, reason, time.time(), new, ends), number)

    def lost_host(self, node: int, host: str) -> None:
        """A host left, and with it its servers."""
        self._gone.add(node)
        for _, seat in self.servers.seats:
            if seat.world.node == node:
                self.lost(seat.worker, f"its host {host} left", host)

    def _change(self, servers: Servers, notice: object = None, number: int = -1) -> None:
        """Tell all peers which servers hold what, if that is another view; before them the launcher."""
        before, self.servers = self.servers, servers
        if notice is not None:
            self._notify(number, notice)
        if servers.view > before.view:
            self._notify(-1, ServersHold(servers.told(), time.time()))
            self._server.tell_all(servers.told())
