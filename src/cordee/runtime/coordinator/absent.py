"""Peers of the coordinator before this one, until they are back or count as lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cordee.runtime.coordinator.holders import holders_of
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.server import SILENCE_S, Peer, Server

LEAST_S = 10.0
"""They come back within milliseconds; a host that has too much to do needs longer."""


class Absent:
    """Who is expected back; called by the thread of the hub's server."""

    def __init__(self, server: Server, known: Known, lose: Callable[[str, int], None]) -> None:
        """Those that the coordinator before had; `lose` is told the role and number of one that does not come."""
        self._server, self._lose = server, lose
        servers = (one.number for holding in known.servers.shards for one in holders_of(holding))
        each = {"worker": known.roster.alive, "server": servers, "node": known.heirs}
        self._peers = {(role, number) for role, numbers in each.items() for number in numbers}

    def came(self, peer: Peer) -> None:
        """This one is here."""
        self._peers.discard((peer.role, peer.number))

    def wait(self) -> None:
        """From now on; of each role as long as it may be silent."""
        for role, seconds in SILENCE_S.items():
            self._server.later(max(seconds, LEAST_S), partial(self._give_up, role))

    def _give_up(self, role: str) -> None:
        for peer in sorted(one for one in self._peers if one[0] == role):
            self._peers.discard(peer)
            self._lose(*peer)
