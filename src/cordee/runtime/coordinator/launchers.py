"""The hub's side of the launchers of other hosts: which of them are here, and what they were told to start."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from cordee.group.messages import Evicted, Message, Place, Present, Seat, Start, Welcome, Who, Without
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.lease import claim, is_shared
from cordee.runtime.coordinator.policy import without_host
from cordee.runtime.coordinator.server import SILENCE_S, Peer, Server
from cordee.runtime.notices import HostCame, Minority

COME_S = 8.0
"""How long the other hosts may take to come to the one that takes over."""
ANSWER_S = 6.0
"""How long they may take to answer; one that is silent is given up sooner."""
AGAIN_S = 0.05
Leave = Callable[[int, str, str], None]
"""What follows when a host has left: its number, its name, and why its workers are lost."""


@dataclass
class _Parting:
    """The others are asked whether the run continues without a host that may only be out of reach."""

    what: str
    """What happened to it."""
    reason: str
    """Why its workers are lost, if it does."""
    come_by: float
    answer_by: float
    agreed: set[int] = field(default_factory=set)
    """Those that follow no coordinator on that host any more."""


class Launchers:
    """The launchers of a run; called by the thread of the hub's server."""

    def __init__(
        self, server: Server, notify: Callable[[int, object], None], known: Known, leave: Leave, folder: str = ""
    ) -> None:
        """`known` has the hosts that are here from the start; `folder` is the run's, where half of them claim it."""
        self._run, self._home, self._folder, self._claims = known.run, known.home, folder, known.claims
        self._server, self._notify, self._leave = server, notify, leave
        self.hosts, self.late = known.hosts, known.late
        self._partings: dict[int, _Parting] = {}
        """Host → how the others answer whether to continue without it."""
        self._starts: dict[int, Start] = {}

    def known(self, run: Known) -> Known:
        """The run, with its hosts as they are."""
        return replace(run, hosts=self.hosts, claims=self._claims, late=self.late)

    def let_in(self, late: Welcome | Evicted) -> None:
        """From now on this is the answer to hosts that enter the run."""
        self.late = late

    def refusal(self, peer: Peer, *, back: bool, who: Who) -> str:
        """Why a launcher, new or `back`, is not let in; empty if it is, and then it has its number."""
        order = self.hosts.order
        if back and not order:  # the coordinator was lost while hosts waited for each other
            return ""
        if back:
            gone = peer.number not in order or peer.number in self.hosts.gone
            return "the others continued without this host" if gone else ""
        peer.number = self.hosts.free()
        if self._enters(who):
            return self.late.reason if isinstance(self.late, Evicted) else ""
        late = peer.number >= self.hosts.nodes
        return f"all {self.hosts.nodes} hosts of this run are here already" if late else ""

    def came(self, peer: Peer, who: Who) -> None:
        """Number all workers once all hosts have come; one that is back hears again what it was to start."""
        if who.term and self.hosts.order:  # what it has started already, it does not start again
            self._partings.pop(peer.number, None)
            for host in self._partings:
                self._server.tell(peer, Without(host))
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
        if peer.number not in self.hosts.order:
            self.hosts = self.hosts.leave(peer.number)
            self._tell()
        elif peer.silent or time.monotonic() - peer.reached > SILENCE_S["node"]:  # it may follow another one since
            self._ask(peer.number, f"host {peer.host} fell silent", f"its host {peer.host} left")
        else:
            self._lose(peer.number, peer.host, f"its host {peer.host} left")

    def never_back(self, number: int, reason: str) -> None:
        """It was here under the coordinator before."""
        name = self.hosts.names.get(number, "")
        self._ask(number, f"host {name} did not come back", f"its host {name} left: {reason}")

    def left(self, number: int, reason: str, certain: bool) -> None:
        """The host of the coordinator before is gone, says its heir: for `certain`, or it is only silent.

        Then the others have to agree, which are on their way.
        """
        name = self.hosts.names.get(number, "")
        if certain:
            self._lose(number, name, f"its host {name} left: {reason}")
        else:
            self._ask(number, f"host {name} fell silent", f"its host {name} left: {reason}", COME_S)

    def settle(self) -> None:
        """What follows from hosts that are gone, if the coordinator before this one has not come so far."""
        for number in self.hosts.gone:
            name = self.hosts.names.get(number, "")
            self._leave(number, name, f"its host {name} left")

    def agreed(self, number: int, host: int) -> None:
        """A launcher agrees to continue without a host."""
        if host in self._partings:
            self._partings[host].agreed.add(number)
            self._conclude(host)

    def _ask(self, number: int, what: str, reason: str, come_s: float = 0.0) -> None:
        """Ask the others whether to continue without a host; those that are not here may still come for so long."""
        now = time.monotonic()
        self._partings[number] = _Parting(what, reason, now + come_s, now + come_s + ANSWER_S)
        self.tell(Without(number))
        self._conclude(number)

    def _conclude(self, number: int) -> None:
        """Go on without a host, end the run on this side, or look again a little later."""
        if (parting := self._partings.get(number)) is None:
            return
        now, here = time.monotonic(), set(self.hosts.order) - self.hosts.gone
        others = here - {number, self._home}
        agree, may = parting.agreed & others, {peer.number for peer in self._server.those("node")} & others
        may = others if now < parting.come_by else agree | may if now < parting.answer_by else agree
        follows = without_host(1 + len(agree), 1 + len(may), len(here))
        if follows == "wait":
            self._server.later(AGAIN_S, partial(self._conclude, number))
            return
        del self._partings[number]
        if follows == "continue" or (follows == "claim" and self._claim()):
            self._lose(number, self.hosts.names.get(number, ""), parting.reason)
        else:
            self._notify(-1, Minority(1 + len(agree), len(here), parting.what))

    def _claim(self) -> bool:
        """Claim it in the folder that both sides see; where there is none, the first host has the claim."""
        if self._home and not is_shared(Path(self._folder), self._run):
            return False
        self._claims += 1
        return claim(Path(self._folder), self._run, self._claims, self._home)

    def _lose(self, number: int, name: str, reason: str) -> None:
        self._partings.pop(number, None)
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

    def start_later(self, seat: Seat) -> None:
        """A worker is about to be started there."""
        self.hosts = self.hosts.start_later(seat)

    def _tell(self) -> None:
        """Say how many hosts are here, to those that wait for the others."""
        present = Present(len(self.hosts.workers), self.hosts.nodes)
        self._notify(-1, present)
        self.tell(present)
