"""Who is let in by a coordinator: peers that are new, and those of the coordinator before it, until they are lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cordee.core.events import WarningEvent
from cordee.group.messages import Evicted, Stale, Welcome, Who
from cordee.runtime.coordinator.holders import holders_of
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.launchers import Launchers
from cordee.runtime.coordinator.server import SILENCE_S, Peer, Server
from cordee.runtime.coordinator.state import Roster
from cordee.runtime.coordinator.stewards import Stewards
from cordee.runtime.notices import Superseded

LEAST_S = 10.0
"""How long peers may take to come back. They need milliseconds; a host that has too much to do needs longer."""
IN_VAIN = "came back to the coordinator and was refused"
NEVER_BACK = "it did not come back to the coordinator, which was started again"


class Door:
    """Called by the thread of the hub's server."""

    def __init__(
        self,
        server: Server,
        notify: Callable[[int, object], None],
        hosts_and_servers: tuple[Launchers, Stewards],
        known: Known,
        lose: Callable[[int, str], None],
    ) -> None:
        """`known` is what this coordinator began with; `lose` says that a worker or a server is gone."""
        self._server, self._notify, self._known, self._lose = server, notify, known, lose
        self._launchers, self._stewards = hosts_and_servers
        servers = (one.number for holding in known.servers.shards for one in holders_of(holding))
        others = [host for host in known.here if host != known.home]
        each = {"worker": known.roster.alive, "server": servers, "node": others}
        self._absent = {(role, number) for role, numbers in each.items() for number in numbers}

    def admit(self, peer: Peer, who: Who, roster: Roster, others: list[tuple[str, int]]) -> Welcome | Evicted | Stale:
        """The answer to a peer. `others`: where the next coordinator may be."""
        term = self._known.term
        if who.term > term:
            self._notify(-1, Superseded(who.term))
            return Stale(who.term)
        if refusal := self._refusal(peer, who, roster):
            if who.term:
                self._notify(-1, WarningEvent(f"{peer.name} {IN_VAIN}: {refusal}"))
            return Evicted(refusal)
        late = self._launchers.late
        run = late.run if who.joins and isinstance(late, Welcome) else None
        return Welcome(self._known.settings, term, self._known.patience_s, peer.number, others, run)

    def refused(self, peer: Peer, word: Evicted) -> None:
        """A peer came back in vain: hang up, and put it on record."""
        self._server.drop(peer.number, word, peer.role)
        self._notify(-1, WarningEvent(f"{peer.name} {IN_VAIN}: {word.reason}"))

    def _refusal(self, peer: Peer, who: Who, roster: Roster) -> str:
        """Why this peer, new or back, is not let in; empty if it is."""
        back = who.term > 0
        if peer.role == "command":
            return "commands go where the file in the run's folder says"
        if peer.role == "node":
            return self._launchers.refusal(peer, back=back, who=who)
        if peer.role == "server":
            return "" if self._stewards.awaits(peer.number) else "it is none of the parameter servers of this run"
        if back and peer.number in roster.departed:  # it may have more for the record
            return ""
        if roster.has_lost(peer.number):
            return "it was evicted: the others continued without it"
        here = (peer.role, peer.number) in self._server.peers and not back  # it may have heard nothing, and come again
        return f"worker {peer.number} is here already" if here else ""

    def came(self, peer: Peer) -> None:
        """This one is here."""
        self._absent.discard((peer.role, peer.number))

    def await_back(self) -> None:
        """From now on, of each role as long as it may be silent; workers and servers that do not come are lost."""
        for role in SILENCE_S:
            self._await(role)

    def await_again(self, peer: Peer) -> None:
        """It came back and hung up before it had our answer, as a connection that is not answered soon is given up."""
        self._absent.add((peer.role, peer.number))
        self._await(peer.role)

    def _await(self, role: str) -> None:
        self._server.later(max(SILENCE_S[role], LEAST_S), partial(self._give_up, role))

    def _give_up(self, role: str) -> None:
        follows = self._launchers.never_back if role == "node" else self._lose
        for peer in sorted(one for one in self._absent if one[0] == role):
            self._absent.discard(peer)
            follows(peer[1], NEVER_BACK)
