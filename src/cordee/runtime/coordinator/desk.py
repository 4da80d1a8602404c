"""What workers ask the hub for: values that their peers leave for them, and parts of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cordee.core.events import encode
from cordee.group.messages import Done, Get, Take, Turned, Value
from cordee.runtime.coordinator.server import Peer, Server
from cordee.runtime.coordinator.tickets import Tickets, Turn, after


class Board:
    """What members of one generation leave for each other; called by the thread of the hub's server."""

    def __init__(self, server: Server) -> None:
        """Nothing is there."""
        self._server = server
        self._values: dict[str, bytes] = {}
        self._askers: dict[str, list[Peer]] = {}
        """Who waits for which of them."""

    def heard(self, peer: Peer, message: Value | Get) -> None:
        """A member leaves a value, or waits for one."""
        if isinstance(message, Value):
            self._leave(message)
        else:
            self._ask(peer, message)

    def _leave(self, message: Value) -> None:
        """Keep it, and pass it on to those that wait for it."""
        self._values[message.key] = message.value
        for asker in self._askers.pop(message.key, []):
            self._server.tell(asker, message)

    def _ask(self, peer: Peer, message: Get) -> None:
        """Answer now, or when it is there."""
        if message.key in self._values:
            self._server.tell(peer, Value(message.key, self._values[message.key]))
        else:
            self._askers.setdefault(message.key, []).append(peer)

    def clear(self) -> None:
        """Another generation begins."""
        self._values.clear()


class Desk:
    """Hands out the parts of windows; called by the thread of the hub's server."""

    def __init__(self, server: Server, note: Callable[[Turn], None]) -> None:
        """`note` is told of each change before any worker is."""
        self._server, self._note = server, note
        self.tickets: Tickets | None = None
        """Of the window that was opened last; None before the first."""

    def heard(self, worker: int, message: Take | Done, alive: Iterable[int]) -> None:
        """A worker asks for a part, or has done one."""
        self._turn(Turn("heard", worker, message, tuple(sorted(alive))))

    def brief(self, peer: Peer) -> None:
        """Tell a launcher that has come back how it stands."""
        if self.tickets is not None:
            self._server.tell(peer, Turned(tickets=encode(self.tickets).decode()))

    def lose(self, worker: int) -> None:
        """What it held is free."""
        if self.tickets is not None:
            self._turn(Turn("lost", worker))

    def hand_out(self, *, regroups: bool) -> None:
        """Answer those that wait for a part. While some worker waits to regroup, none is given a new one."""
        if self.tickets is not None and self.tickets.waiting and (self.tickets.over or not regroups):
            self._turn(Turn("handed out"))

    def _turn(self, turn: Turn) -> None:
        self.tickets, answers = after(self.tickets, turn)
        self._note(turn)
        text = ""
        for peer in self._server.those("node"):
            self._server.tell(peer, Turned(text := text or encode(turn).decode()))
        for worker, answer in answers:
            self._server.tell_one("worker", worker, answer)
