"""The hub's side of workers and hosts that come and leave while a run trains; called by the thread of its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cordee.group.messages import Evicted, Leaving, Newcomers, Welcome, Who, Woke
from cordee.runtime.coordinator.server import Peer, Server
from cordee.runtime.coordinator.state import Hosts, Roster
from cordee.runtime.notices import HostCame, Leaves

Late = Callable[[int], "Welcome | Evicted"]
"""The answer to a host that enters a run which so many workers began."""


def no_late_host(started: int) -> Welcome | Evicted:
    """Where no launcher of ours coordinates."""
    return Evicted("no host can enter this run")


class Known(Protocol):
    """What the hub knows."""

    roster: Roster
    hosts: Hosts


class Coming:
    """Tells all workers who waits to come in and who is to leave, so that they meet after their next step."""

    def __init__(
        self,
        known: Known,
        server: Server,
        notify: Callable[[int, object], None],
        lose: Callable[[int, str], None],
    ) -> None:
        """`known` is changed here; `lose` says that a worker is gone."""
        self._known, self._server, self._notify, self._lose = known, server, notify, lose
        self.late: Late = no_late_host
        """To be set before hosts come."""

    def ask_to_leave(self, worker: int, reason: str) -> None:
        """Ask a worker to leave after the step that it is in; from another thread."""
        self._server.call(self.leave, worker, reason)

    def tell(self) -> None:
        """Say which workers are to come or leave after the next step."""
        roster = self._known.roster
        self._server.tell_all(Newcomers(sorted(roster.waiting), sorted(roster.leaving)))

    def leave(self, worker: int, reason: str) -> None:
        """A worker is to leave: a member between two steps, one that has not come in yet at once."""
        if worker in self._known.roster.invited:
            self._lose(worker, f"{reason}, before it came in")
        elif worker in self._known.roster.alive:
            self._known.roster = self._known.roster.ask_to_leave(worker)
            self.tell()
            self._notify(worker, Leaves(reason))

    def invite(self, worker: int, node: int) -> None:
        """A worker is about to be started on a host, and shall come in."""
        known = self._known
        known.roster, known.hosts = known.roster.invite(worker), known.hosts.start_later(worker, node)

    def formed(self) -> None:
        """Another generation begins; some that were to leave may still be in it."""
        if self._known.roster.leaving:
            self.tell()

    def heard(self, worker: int, message: Leaving | Woke) -> None:
        """A worker was asked to leave; or a launcher says that an evicted one continues."""
        if isinstance(message, Leaving):
            self.leave(worker, message.reason)
        else:
            self._notify(message.worker, message)

    def admit(self, peer: Peer) -> Welcome | Evicted:
        """A launcher asks to enter the run; a command has come to the wrong place."""
        if peer.role != "node":
            return Evicted("commands go where the file in the run's folder says")
        peer.number = self._known.hosts.free()
        if not self._known.hosts.order:
            return Evicted("the run has not begun: try again later")
        return self.late(self._known.roster.expected)

    def host_came(self, peer: Peer, who: Who) -> None:
        """It is one of the hosts from now on."""
        self._known.hosts = self._known.hosts.grown(peer.number, who.workers)
        self._notify(-1, HostCame(len(self._known.hosts.order) - 1, peer.host, who.workers))
