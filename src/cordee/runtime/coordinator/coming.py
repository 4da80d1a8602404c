"""The hub's side of workers and hosts that come and leave while a run trains; called by the thread of its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cordee.group.messages import Leaving, Message, Newcomers, Seat, Woke
from cordee.runtime.coordinator.launchers import Launchers
from cordee.runtime.coordinator.server import Peer, Server
from cordee.runtime.coordinator.state import Roster
from cordee.runtime.notices import Leaves


class Members(Protocol):
    """The hub, which keeps the roster."""

    roster: Roster


class Coming:
    """Tells all workers who waits to come in and who is to leave, so that they meet after their next step.

    The launcher is told before any worker is, as it starts the next coordinator if this one is lost.
    """

    def __init__(
        self,
        members: Members,
        launchers: Launchers,
        server: Server,
        notify: Callable[[int, object], None],
        lose: Callable[[int, str], None],
    ) -> None:
        """The roster of the `members` is changed here; `lose` says that a worker is gone."""
        self._members, self._launchers, self._server = members, launchers, server
        self._notify, self._lose = notify, lose

    def tell(self) -> None:
        """Say which workers are to come or leave after the next step."""
        self._server.tell_all(self._news())

    def leave(self, worker: int, reason: str) -> None:
        """A worker is to leave: a member between two steps, one that has not come in yet at once."""
        if worker in self._members.roster.invited:
            self._lose(worker, f"{reason}, before it came in")
        elif worker in self._members.roster.alive:
            self._members.roster = self._members.roster.ask_to_leave(worker)
            self._notify(worker, Leaves(reason))
            self.tell()

    def invite(self, seat: Seat) -> None:
        """A worker is about to be started at its place, and shall come in."""
        self._members.roster = self._members.roster.invite(seat.worker)
        self._launchers.start_later(seat)

    def formed(self) -> None:
        """Another generation begins; some that were to leave may still be in it."""
        if self._members.roster.leaving:
            self.tell()

    def came_back(self, peer: Peer) -> None:
        """A worker has come back to a coordinator that was started anew: it may have missed who is to leave."""
        if self._members.roster.leaving:
            self._server.tell(peer, self._news())

    def heard(self, worker: int, message: Leaving | Woke) -> None:
        """A worker was asked to leave; or a launcher says that an evicted one continues."""
        if isinstance(message, Leaving):
            self.leave(worker if message.worker < 0 else message.worker, message.reason)
        else:
            self._notify(message.worker, message)

    def _news(self) -> Message:
        roster = self._members.roster
        return Newcomers(sorted(roster.waiting), sorted(roster.leaving))
