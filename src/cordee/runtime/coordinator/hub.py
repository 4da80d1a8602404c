"""Membership of one run: lets workers in, notices losses, forms generations, passes on what is for the record.

All of its state lives in the thread of its server; the outside talks to it through `lose`, `call`, `ask_to_stop` and
`abort`, and listens on `notices`.
"""

from __future__ import annotations

import dataclasses
import queue
import time
from collections.abc import Callable
from typing import Any

import msgspec

from cordee.core.errors import CordeeError
from cordee.core.events import JobEvent, StepEvent
from cordee.group import messages
from cordee.group.messages import FIRST_SERVER, Again, Evicted, Message, Place, Stale, Start, Welcome, Who
from cordee.group.strangers import Strangers
from cordee.group.wire import Address
from cordee.runtime.coordinator.coming import Coming
from cordee.runtime.coordinator.desk import Board, Desk
from cordee.runtime.coordinator.door import Door
from cordee.runtime.coordinator.known import Known, Successor, first_known, returned
from cordee.runtime.coordinator.launchers import Launchers
from cordee.runtime.coordinator.parted import Parted
from cordee.runtime.coordinator.policy import all_finished, next_generation
from cordee.runtime.coordinator.server import Peer, Server
from cordee.runtime.coordinator.state import Hosts
from cordee.runtime.coordinator.stewards import Stewards
from cordee.runtime.notices import Formed, Interrupt, Lost


class Hub:
    """Keeps the roster of a run by what its peers say, and tells them what follows from it."""

    def __init__(
        self,
        bind: Address,
        *,
        expected: int,
        nodes: int = 1,
        heard: bool = True,
        settings: dict[str, str] | None = None,
        successor: Successor | None = None,
    ) -> None:
        """Listen at `bind` (port 0 picks one). `expected` workers form the first generation.

        With several `nodes` they are this one's; those of the others come with them. `heard=False`: `notices` are not
        read. Peers are told the `settings` of a resumed run. `successor`: of a coordinator that may be started anew.
        """
        self.notices, self._heard = queue.SimpleQueue[Any](), heard
        self._begun = known = successor.known if successor else first_known(expected, nodes, settings or {})
        self._lives_once, self._recorded = successor is None, known.recorded
        self._last: Known | None = None
        self.roster, self._go, self._job, self._ending = known.roster, known.go, known.job, known.ended
        self._strangers = Strangers("the coordinator", lambda event: self._notify(-1, event))
        self._server = Server(bind, self, self._strangers, successor.listener if successor else None)
        self.address = self._server.address
        self.stewards = Stewards(self._server, self._notify)
        self.launchers = Launchers(
            self._server, self._notify, known, self._lose_host, successor.folder if successor else ""
        )
        self._parted = Parted(self._server, self._notify, self._evict, known)
        self.coming = Coming(self, self.launchers, self._server, self._notify, self._lost)
        self.stewards.restore(known)
        self._door = Door(self._server, self._notify, (self.launchers, self.stewards), known, self._lost)
        self._board = Board(self._server)
        self._desk = Desk(self._server, lambda turn: self._notify(-1, turn) if successor else None)
        if successor:
            self.notices, self._desk.tickets = successor.notices, successor.tickets
            if successor.standing is not None:
                self._server.tell_all(successor.standing, later=True)
        self._server.start()
        self._server.call(self._door.await_back)
        self._server.call(self.launchers.settle)

    @property
    def hosts(self) -> Hosts:
        """Those of the run, as far as they have come."""
        return self.launchers.hosts

    def known(self) -> Known:
        """What the next coordinator would begin with."""
        run = self.launchers.known(self.stewards.known(self._begun))
        return dataclasses.replace(run, roster=self.roster, go=self._go, job=self._job, ended=self._ending)

    # ------------------------------------------------------------- from other threads

    def lose(self, worker: int, reason: str) -> None:
        """Say that a worker is gone (its process ended, or it was stopped)."""
        self._server.call(self._lost, worker, reason)

    def call(self, function: Callable[..., None], *args: object) -> None:
        """Let the server's thread do this, and the launcher know how the run stands then."""
        self._server.call(function, *args)
        self._server.call(self._notify, -1, None)

    def ask_to_stop(self, reason: str) -> None:
        """Ask all workers to end after the step they are in, with a checkpoint; those too that connect later."""
        self._server.call(self._server.tell_all, messages.Stop(reason), True)

    def abort(self, reason: str, again: Again | None = None) -> None:
        """End all workers at once; if the run is to start `again`, other hosts come back for it."""
        self._ending = True
        self._server.call(self._server.tell_all, messages.Abort(reason, again), True)

    def start_on(self, node: int, start: Start) -> None:
        """Tell the launcher of the host with this place in the order of hosts."""
        self._server.call(self.launchers.start_on, node, start)

    def hear_out(self, seconds: float) -> None:
        """Wait until all is read that ended workers and servers said: their connections end then. At most so long."""
        self._server.hear_out(seconds)
        self._strangers.tell()

    def close(self) -> None:
        """Close every connection and end the thread."""
        self._ending = True
        self._server.close()

    # ------------------------------------------------------------- peers; see `Host`

    def admit(self, peer: Peer, who: Who) -> Welcome | Evicted | Stale:
        """Let a worker in that was not here before, hosts until all have come, and all of them again."""
        return self._door.admit(peer, who, self.roster, [] if self._lives_once else self.known().doors())

    def came(self, peer: Peer, who: Who) -> None:
        """Enter a worker into the roster, or number all workers once all hosts have come."""
        self._door.came(peer)
        if peer.role == "worker":
            self.roster = self.roster if who.term else self.roster.join(peer.number)
            self._notify(peer.number, who)
            self.stewards.brief(peer)
        elif peer.role == "server":
            self.stewards.came(peer, Place(peer.number, peer.host, who.interface, who.port, who.pid))
        else:
            awaited = not self.hosts.order
            self.launchers.came(peer, who)
            if who.term and (known := self.known()).heirs:  # it may be the next one
                self.launchers.tell(messages.Known(known.packed()))
                self._desk.brief(peer)
            if awaited and self.hosts.order:
                self.roster = dataclasses.replace(self.roster, expected=sum(self.hosts.counts))

    def gone(self, peer: Peer, reason: str) -> None:
        """A worker is lost, or a host, with all of its workers."""
        if self._ending:
            return
        if peer.unsure:
            self._door.await_again(peer)
        elif peer.role == "node":
            self.launchers.gone(peer)
        else:
            self._lost(peer.number, reason, peer.host)

    def broken(self, peer: Peer, error: Exception) -> None:
        """Say so: it ends the run."""
        self._notify(peer.number, CordeeError(f"a defect of Cordée, please report it: {type(error).__name__}: {error}"))

    def heard(self, peer: Peer, message: Message) -> None:
        """Act on what is for the coordinator; the rest is for those who read the notices."""
        match message:
            case messages.Beat(at, echo):
                peer.at, peer.reached = at, max(peer.reached, echo)
                self._server.tell(peer, messages.Clock(time.time(), peer.heard, time.monotonic()))
            case messages.Back():
                self._returned(peer, message)
            case messages.Posted(events, number):
                self._recorded = max([self._recorded, *(one.step for one in events if isinstance(one, StepEvent))])
                self._job = next((one for one in events if isinstance(one, JobEvent)), self._job)
                for one in (message,) if not self._lives_once else events:  # a launcher has to tell what comes twice
                    self._notify(peer.number if peer.role != "node" else -1 - peer.number, one)
                peer.heard = number
            case messages.Ready(committed, admits):
                self._ready(peer.number, committed, admits)
            case messages.Finish():
                self.roster = self.roster.finish(peer.number)
                self._advance()
            case messages.Value() | messages.Get():
                self._board.heard(peer, message)
            case messages.Take() | messages.Done():
                self._desk.heard(peer.number, message, self.roster.alive)
                self._desk.hand_out(regroups=bool(self.roster.ready))
            case messages.Lose(worker, reason):
                self._lost(worker, reason)
            case messages.Leaving() | messages.Woke():
                self.coming.heard(peer.number, message)
            case messages.Unreached():
                self._parted.heard(peer.number, message, lambda: self.hosts.nodes_of(self.roster.alive))
            case messages.Torn(generation):
                self._torn(generation)
            case messages.Agreed(host):
                self.launchers.agreed(peer.number, host)
            case messages.Asked():
                self._notify(-1, Interrupt(peer.host))
            case messages.Filled(server):
                self.stewards.filled(server)
            case messages.Stuck():
                self._notify(peer.number, msgspec.structs.replace(message, others=self._server.whereabouts(peer)))
            case messages.Failed() | messages.Saving():
                self._ending = self._ending or isinstance(message, messages.Failed)  # the others do not continue then
                self._notify(peer.number, message)
            case _:
                raise ValueError(f"{type(message).__name__} is not for the coordinator")

    # ------------------------------------------------------------- what follows

    def _notify(self, worker: int, notice: object) -> None:
        if not self._lives_once:
            before, self._last = self._last, (known := self.known())
            self.notices.put((worker, notice, None if known == before else known))
            if known != before and known.heirs:
                self.launchers.tell(messages.Known(known.packed()))
        elif self._heard and notice is not None:
            self.notices.put((worker, notice))

    def _advance(self) -> None:
        """Let all leave, or begin the next generation, if it is time."""
        if all_finished(self.roster):
            self._ending = True
            self._notify(-1, farewell := messages.Farewell())
            self._server.tell_all(farewell, later=True)
            return
        if (step := next_generation(self.roster)) is None:
            return
        self.roster, go = step
        self._go = go = msgspec.structs.replace(go, recorded=self._recorded)
        self._board.clear()
        self._notify(-1, Formed(go, time.time()))  # the launcher knows before any worker, and outlives us
        self._server.tell_all(go)
        self.coming.formed()
        self._desk.hand_out(regroups=False)

    def _returned(self, peer: Peer, back: messages.Back) -> None:
        """A worker has come back, and says what it knows."""
        self.roster, self._go, words = returned(self.roster, self._go, peer.number, back)
        self._notify(-1, None)
        for word in words:
            self._server.tell(peer, word)
            if isinstance(word, Evicted):
                self._door.refused(peer, word)
        self.coming.came_back(peer)
        self._advance()

    def _ready(self, worker: int, committed: int, admits: bool) -> None:
        self.roster = self.roster.report(worker, committed, admits=admits)
        if worker in self.roster.waiting:
            self.coming.tell()
        self._advance()

    def _lost(self, worker: int, reason: str, host: str = "", *, with_host: bool = False) -> None:
        if self._ending or self.roster.has_lost(worker):
            return
        if worker >= FIRST_SERVER:
            self.stewards.lost(worker, reason, host)
            return
        generation, was_member = self.roster.generation, worker not in self.roster.invited
        self.roster = self.roster.lose(worker, reason)
        host = peer.host if (peer := self._server.drop(worker, Evicted(reason))) is not None else host
        self._notify(worker, Lost(host, reason, len(self.roster.alive), time.time(), with_host, was_member))
        if was_member:
            self._desk.lose(worker)  # before the news: a worker that waits for a part need not regroup first
            self._desk.hand_out(regroups=bool(self.roster.ready))
            self._server.tell_all(messages.Break(generation, worker))
            self._advance()
        else:  # the others have not counted on it
            self.coming.tell()

    def _lose_host(self, number: int, host: str, reason: str) -> None:
        for worker in self.hosts.workers_of(number):
            self._lost(worker, reason, host, with_host=True)
        self.stewards.lost_host(self.hosts.order.index(number), host)

    def _evict(self, node: int, reason: str) -> None:
        if not self._ending:
            self.launchers.evict(node, reason)

    def _torn(self, generation: int) -> None:
        """A collective failed though no member was lost (a flaky link): all members regroup."""
        if generation == self.roster.generation and self.roster.formed and not self._ending:
            self.roster = self.roster.tear()
            self._server.tell_all(messages.Break(generation, None))
