"""Membership of one run: lets workers in, notices losses, forms generations, passes on what is for the record.

All of its state lives in the thread of its server; the outside talks to it through `lose`, `invite`, `ask_to_stop` and
`abort`, and listens on `notices`.
"""

from __future__ import annotations

import dataclasses
import queue
import time

import msgspec

from cordee.core.errors import CordeeError
from cordee.core.events import StepEvent
from cordee.group import messages
from cordee.group.messages import FIRST_SERVER, Evicted, Message, Place, Welcome, Who
from cordee.group.strangers import Strangers
from cordee.group.wire import Address
from cordee.runtime.coordinator.coming import Coming
from cordee.runtime.coordinator.parted import Parted
from cordee.runtime.coordinator.policy import all_finished, next_generation
from cordee.runtime.coordinator.server import Peer, Server
from cordee.runtime.coordinator.state import Hosts, Roster
from cordee.runtime.coordinator.stewards import Stewards
from cordee.runtime.coordinator.tickets import Tickets, heard
from cordee.runtime.notices import Formed, Interrupt, Lost, Notices


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
    ) -> None:
        """Listen at `bind` (port 0 picks one). `expected` workers form the first generation.

        With several `nodes` these are the workers of this one, to which those of the others are added when they come.
        `heard=False`: `notices` are not read, so none are kept. All peers are told the `settings` of a resumed run.
        """
        self.notices: Notices = queue.SimpleQueue()
        self._heard = heard
        self._settings = dict(settings or {})
        self.roster = Roster(expected=expected)
        self.hosts = Hosts(nodes, {0: expected})
        self._values: dict[str, bytes] = {}
        """What members of this generation left for each other."""
        self._askers: dict[str, list[Peer]] = {}
        """Who waits for which of them."""
        self._tickets: Tickets | None = None
        """Of the window that was opened last; None before the first."""
        self._recorded = -1
        self._ending = False
        self._strangers = Strangers("the coordinator", lambda event: self._notify(-1, event))
        self._server = Server(bind, self, self._strangers)
        self.address = self._server.address
        self.stewards = Stewards(self._server, self._notify)
        self._parted = Parted(self._server, self._notify, self._evict)
        self.coming = Coming(self, self._server, self._notify, self._lost)
        self._server.start()

    # ------------------------------------------------------------- from other threads

    def lose(self, worker: int, reason: str) -> None:
        """Say that a worker is gone (its process ended, or it was stopped)."""
        self._server.call(self._lost, worker, reason)

    def invite(self, worker: int, node: int) -> None:
        """Say that a worker is about to be started on a host, and shall come in between two steps."""
        self._server.call(self.coming.invite, worker, node)

    def ask_to_stop(self, reason: str) -> None:
        """Ask all workers to end after the step they are in, with a checkpoint; those too that connect later."""
        self._server.call(self._server.tell_all, messages.Stop(reason), True)

    def abort(self, reason: str, again: messages.Again | None = None) -> None:
        """End all workers at once; if the run is to start `again`, other hosts come back for it."""
        self._ending = True
        self._server.call(self._server.tell_all, messages.Abort(reason, again), True)

    def tell_host(self, node: int, message: Message) -> None:
        """Tell the launcher of the host with this place in the order of hosts."""
        self._server.call(self._server.tell_one, "node", self.hosts.order[node], message)

    def hear_out(self, seconds: float) -> None:
        """Wait until all is read that ended workers and servers said: their connections end then. At most so long."""
        self._server.hear_out(seconds)
        self._strangers.tell()

    def close(self) -> None:
        """Close every connection and end the thread."""
        self._server.close()

    # ------------------------------------------------------------- peers; see `Host`

    def admit(self, peer: Peer) -> Welcome | Evicted:
        """Let a worker in that was not here before, and hosts until all have come."""
        if peer.joins or peer.role == "command":
            return self.coming.admit(peer)
        if peer.role == "node":
            peer.number = self.hosts.free()
            if peer.number >= self.hosts.nodes:
                return Evicted(f"all {self.hosts.nodes} hosts of this run are here already")
        elif peer.role == "server":
            if not self.stewards.awaits(peer.number):
                return Evicted("it is none of the parameter servers of this run")
        elif self.roster.has_lost(peer.number):
            return Evicted("it was evicted: the others continued without it")
        elif (peer.role, peer.number) in self._server.peers:
            return Evicted(f"worker {peer.number} is here already")
        return Welcome(self._settings)

    def came(self, peer: Peer, who: Who) -> None:
        """Enter a worker into the roster, or number all workers once all hosts have come."""
        if peer.role == "worker":
            self.roster = self.roster.join(peer.number)
            self._notify(peer.number, who)
            self.stewards.brief(peer)
            return
        if peer.role == "server":
            self.stewards.came(Place(peer.number, peer.host, who.interface, who.port, who.pid))
            return
        if who.joins:
            return self.coming.host_came(peer, who)
        keeper = Place(peer.number, peer.host, who.interface, who.port) if who.port else None
        self.hosts = self.hosts.come(peer.number, who.workers, keeper)
        if len(self.hosts.workers) == self.hosts.nodes:
            self.hosts = self.hosts.numbered({one.number: one.host for one in self._server.those("node")})
            self.roster = dataclasses.replace(self.roster, expected=sum(self.hosts.counts))
        self._tell_hosts()

    def gone(self, peer: Peer, reason: str) -> None:
        """A worker is lost, or a host, with all of its workers."""
        if self._ending:
            return
        if peer.role != "node":
            self._lost(peer.number, reason, peer.host)
            return
        if peer.number not in self.hosts.order:
            self.hosts = self.hosts.leave(peer.number)
            self._tell_hosts()
            return
        self._lose_host(peer, f"its host {peer.host} left")

    def broken(self, peer: Peer, error: Exception) -> None:
        """Say so: it ends the run."""
        self._notify(peer.number, CordeeError(f"a defect of Cordée, please report it: {type(error).__name__}: {error}"))

    def heard(self, peer: Peer, message: Message) -> None:
        """Act on what is for the coordinator; the rest is for those who read the notices."""
        match message:
            case messages.Beat(at):
                peer.at = at
                self._server.tell(peer, messages.Clock(time.time()))
            case messages.Posted(events):
                for event in events:
                    if isinstance(event, StepEvent):
                        self._recorded = max(self._recorded, event.step)
                    self._notify(peer.number, event)
            case messages.Ready(committed, admits):
                self._ready(peer.number, committed, admits)
            case messages.Finish():
                self.roster = self.roster.finish(peer.number)
                self._advance()
            case messages.Value(key, value):
                self._values[key] = value
                for asker in self._askers.pop(key, []):
                    self._server.tell(asker, message)
            case messages.Get(key) if key in self._values:
                self._server.tell(peer, messages.Value(key, self._values[key]))
            case messages.Get(key):
                self._askers.setdefault(key, []).append(peer)
            case messages.Take() | messages.Done():
                self._tickets = heard(self._tickets, peer.number, message, self.roster.alive)
                self._hand_out()
            case messages.Lose(worker, reason):
                self._lost(worker, reason)
            case messages.Leaving() | messages.Woke():
                self.coming.heard(peer.number, message)
            case messages.Unreached():
                self._parted.heard(peer.number, message, lambda: self.hosts.nodes_of(self.roster.alive))
            case messages.Torn(generation):
                self._torn(generation)
            case messages.Asked():
                self._notify(-1, Interrupt(peer.host))
            case messages.Filled(server):
                self.stewards.filled(server)
            case messages.Stuck():
                self._notify(peer.number, msgspec.structs.replace(message, others=self._server.whereabouts(peer)))
            case messages.Failed():  # the run ends: the others do not continue without this one
                self._ending = True
                self._notify(peer.number, message)
            case messages.Saving():
                self._notify(peer.number, message)
            case _:
                raise ValueError(f"{type(message).__name__} is not for the coordinator")

    # ------------------------------------------------------------- what follows

    def _notify(self, worker: int, notice: object) -> None:
        if self._heard:
            self.notices.put((worker, notice))

    def _tell_hosts(self) -> None:
        """Say how many hosts are here, to those that wait for the others."""
        present = messages.Present(len(self.hosts.workers), self.hosts.nodes)
        for peer in self._server.those("node"):
            self._server.tell(peer, present)
        self._notify(-1, present)

    def _advance(self) -> None:
        """Let all leave, or begin the next generation, if it is time."""
        if all_finished(self.roster):
            self._ending = True
            self._server.tell_all(farewell := messages.Farewell())
            self._notify(-1, farewell)
            return
        if (step := next_generation(self.roster)) is None:
            return
        self.roster, go = step
        self._values.clear()
        self._server.tell_all(msgspec.structs.replace(go, recorded=self._recorded))
        self._notify(-1, Formed(go, time.time()))
        self.coming.formed()
        self._hand_out()

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
        peer = self._server.drop(worker, Evicted(reason))
        host = peer.host if peer is not None else host
        self._notify(worker, Lost(host, reason, len(self.roster.alive), time.time(), with_host, was_member))
        if was_member:
            if self._tickets is not None:  # before the news: a worker that waits for a part need not regroup first
                self._tickets = self._tickets.lose(worker)
                self._hand_out()
            self._server.tell_all(messages.Break(generation, worker))
            self._advance()
        else:  # the others have not counted on it
            self.coming.tell()

    def _lose_host(self, peer: Peer, reason: str) -> None:
        """By the launcher of a host, which is none of the peers any more."""
        self.hosts = self.hosts.lose(peer.number)
        for worker in self.hosts.workers_of(peer.number):
            self._lost(worker, reason, peer.host, with_host=True)
        self.stewards.lost_host(self.hosts.order.index(peer.number), peer.host)

    def _evict(self, node: int, reason: str) -> None:
        """Go on without a host, and tell its launcher."""
        peer = None if self._ending else self._server.drop(self.hosts.order[node], Evicted(reason), "node")
        if peer is not None:
            self._lose_host(peer, f"its host {peer.host} was evicted: {reason}")

    def _hand_out(self) -> None:
        """Answer those that wait for a part. While some worker waits to regroup, none is given a new one."""
        if self._tickets is None or (self.roster.ready and not self._tickets.over):
            return
        self._tickets, answers = self._tickets.hand_out()
        for worker, answer in answers:
            self._server.tell_one("worker", worker, answer)

    def _torn(self, generation: int) -> None:
        """A collective failed though no member was lost (a flaky link): all members regroup."""
        if generation == self.roster.generation and self.roster.formed and not self._ending:
            self.roster = self.roster.tear()
            self._server.tell_all(messages.Break(generation, None))
