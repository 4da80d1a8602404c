"""The hub's side of the launchers of other hosts: which of them are here, and what they were told to start."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from cordee.group.messages import Evicted, Message, Place, Present, Start, Welcome, Who
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.lease import claim
from cordee.runtime.coordinator.policy import goes_on
from cordee.runtime.coordinator.server import Peer, Server
from cordee.runtime.notices import HostCame, Minority

VOTES_S = 8.0
"""How long the other hosts may take to come to the one that takes over."""
AGAIN_S = 0.05
Leave = Callable[[int, str, str], None]
"""What follows when a host has left: its number, its name, and why its workers are lost."""


class Launchers:
    """The launchers of a run; called by the thread of the hub's server."""

    def __init__(
        self, server: Server, notify: Callable[[int, object], None], known: Known, leave: Leave, folder: str = ""
    ) -> None:
        """`known` has the hosts that are here from the start; `folder` is the run's, where half of them claim it."""
        self._run, self._home, self._folder, self.claims = known.run, known.home, folder, known.claims
        self._server, self._notify, self._leave = server, notify, leave
        self.hosts, self.late = known.hosts, known.late
        self._left = set(known.hosts.order) - set(known.here)
        self._starts: dict[int, Start] = {}
        self._began = time.monotonic()

    def let_in(self, late: Welcome | Evicted) -> None:
        """From now on this is the answer to hosts that enter the run."""
        self.late = late

    def refusal(self, peer: Peer, left: frozenset[int], *, back: bool, who: Who) -> str:
        """Why a launcher, new or `back`, is not let in; empty if it is, and then it has its number.

        `left`: the node numbers of hosts that are gone.
        """
        order = self.hosts.order
        if back and not order:  # the coordinator was lost while hosts waited for each other
            return ""
        if back:
            gone = peer.number not in order or order.index(peer.number) in left
            return "the others continued without this host" if gone else ""
        peer.number = self.hosts.free()
        if self._enters(who):
            return self.late.reason if isinstance(self.late, Evicted) else ""
        late = peer.number >= self.hosts.nodes
        return f"all {self.hosts.nodes} hosts of this run are here already" if late else ""

    def came(self, peer: Peer, who: Who) -> None:
        """Number all workers once all hosts have come; one that is back hears again what it was to start."""
        if who.term and self.hosts.order:  # what it has started already, it does not start again
            if (start := self._starts.get(self.hosts.order.index(peer.number))) is not None:
                self._server.tell(peer, start)
            return
        if self._enters(who):
            self.hosts = self.hosts.grown(peer.number, who.workers, peer.host)
            self._notify(-1, HostCame(len(self.hosts.order) - 1, peer.host, who.workers))
            return
        keeper = Place(peer.number, peer.host, who.interface, who.port) if who.port else None
        self.hosts = self.hosts.come(peer.number, who.workers, keeper, who.door)
        if len(self.hosts.workers) == self.hosts.nodes:
            names = {one.number: one.host for one in self._server.those("node")}
            self.hosts = self.hosts.numbered(names)
            self.hosts = replace(self.hosts, names={**self.hosts.names, 0: socket.gethostname()})
        self._tell()

    def _enters(self, who: Who) -> bool:
        """Whether it comes to a run that has begun; one that may come `early` does if all of the first are here."""
        return who.joins and not (who.early and not self.hosts.order)

    def gone(self, peer: Peer) -> None:
        """Before the run began, another one may take its place."""
        if peer.number in self.hosts.order:
            reason = f"its host {peer.host} left"
            if not peer.silent or self._may_go_on(f"host {peer.host} fell silent", 1 + len(self._server.fresh("node"))):
                self._lose(peer.number, peer.host, reason)
        else:
            self.hosts = self.hosts.leave(peer.number)
            self._tell()

    def never_back(self, number: int, reason: str) -> None:
        """It was here under the coordinator before."""
        name = self.hosts.names.get(number, "")
        if self._may_go_on(f"host {name} did not come back", 1 + len(self._server.those("node"))):
            self._lose(number, name, f"its host {name} left: {reason}")

    def left(self, number: int, reason: str, votes: int, tie: bool) -> None:
        """The host of the coordinator before is gone: so says its heir, which needs as many `votes`, with its own.

        Without them it looks again a little later: the others are on their way. `tie`: half of the hosts may claim it.
        """
        name = self.hosts.names.get(number, "")
        if 1 + len(self._server.those("node")) >= votes:
            self._lose(number, name, f"its host {name} left: {reason}")
        elif time.monotonic() - self._began < VOTES_S:
            self._server.later(AGAIN_S, partial(self.left, number, reason, votes, tie))
        elif self._may_go_on(f"host {name} fell silent", 1 + len(self._server.those("node")), tie=tie):
            self._lose(number, name, f"its host {name} left: {reason}")

    def _may_go_on(self, what: str, here: int, *, tie: bool = True) -> bool:
        """Whether those hosts that are here are enough; if not, the launcher ends the run on this side."""
        of = len(self.hosts.order) - len(self._left)
        if goes_on(here, of, tie=False) or (goes_on(here, of, tie=tie) and self._claim()):
            return True
        self._notify(-1, Minority(here, of, what))
        return False

    def _claim(self) -> bool:
        self.claims += 1
        return claim(Path(self._folder), self._run, self.claims, self._home)

    def _lose(self, number: int, name: str, reason: str) -> None:
        self._left.add(number)
        self.hosts = self.hosts.lose(number)
        self._leave(number, name, reason)

    def tell(self, message: Message) -> None:
        """Tell all of them."""
        for peer in self._server.those("node"):
            self._server.tell(peer, message)

    def evict(self, node: int, reason: str) -> None:
        """Go on without a host, and tell its launcher."""
        peer = self._server.drop(self.hosts.order[node], Evicted(reason), "node")
        if peer is not None:
            self._lose(peer.number, peer.host, f"its host {peer.host} was evicted: {reason}")

    def start_on(self, node: int, start: Start) -> None:
        """Tell the launcher of the host with this place in the order of hosts."""
        before = self._starts.get(node, Start([]))
        self._starts[node] = Start([*before.seats, *start.seats], start.keeper)
        self._server.tell_one("node", self.hosts.order[node], start)

    def start_later(self, worker: int, node: int) -> None:
        """A worker is about to be started there."""
        self.hosts = self.hosts.start_later(worker, node)

    def _tell(self) -> None:
        """Say how many hosts are here, to those that wait for the others."""
        present = Present(len(self.hosts.workers), self.hosts.nodes)
        self._notify(-1, present)
        self.tell(present)
