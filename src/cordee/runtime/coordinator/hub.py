"""Membership of one run: lets workers in, notices losses, forms generations, passes on what is for the record.

All of its state lives in the thread of its server; the outside talks to it through `lose`, `invite`, `ask_to_stop` and
`abort`, and listens on `notices`.
"""

from __future__ import annotations

import dataclasses
import queue
import time

from cordee.group.wire import Address, Message
from cordee.runtime.coordinator.policy import all_finished, next_generation
from cordee.runtime.coordinator.server import Peer, Server
from cordee.runtime.coordinator.state import Hosts, Roster

Notices = queue.SimpleQueue[tuple[str, int, Message]]
"""What happened, to which worker, and more about it."""


class _Board:
    """Values that the members of a generation leave for each other, and who waits for which."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._askers: dict[str, list[Peer]] = {}

    def put(self, values: dict[str, str]) -> list[tuple[Peer, str]]:
        """Keep them; who waited for which of them."""
        self._values.update(values)
        return [(asker, key) for key in values for asker in self._askers.pop(key, [])]

    def get(self, key: str, asker: Peer) -> str | None:
        """A value; None if it has not come, and is waited for."""
        if key not in self._values:
            self._askers.setdefault(key, []).append(asker)
        return self._values.get(key)

    def clear(self) -> None:
        """A new generation begins."""
        self._values.clear()


class Hub:
    """Keeps the roster of a run by what its peers say, and tells them what follows from it."""

    def __init__(
        self,
        bind: Address,
        *,
        expected: int,
        nodes: int = 1,
        workers_here: int = 0,
        heard: bool = True,
        brief: Message | None = None,
    ) -> None:
        """Listen at `bind` (port 0 picks one). `expected` workers form the first generation.

        With several `nodes` it is the sum of the workers of all of them, known when all have come. `heard=False`:
        `notices` are not read, so none are kept. `brief`: what all are told with the welcome.
        """
        self.notices: Notices = queue.SimpleQueue()
        self._heard = heard
        self._brief = dict(brief or {})
        self.roster = Roster(expected=expected)
        self.hosts = Hosts(nodes, {0: workers_here})
        self._board = _Board()
        self._recorded = -1
        self._ending = False
        self._server = Server(bind, self)
        self.address = self._server.address
        self._server.start()

    # ------------------------------------------------------------- from other threads

    def lose(self, worker: int, reason: str) -> None:
        """Say that a worker is gone (its process ended, or it was stopped)."""
        self._server.call(self._lost, worker, reason)

    def invite(self, worker: int, node: int) -> None:
        """Say that a worker is about to be started on a host, and shall come in between two steps."""
        self._server.call(self._invite, worker, node)

    def ask_to_stop(self, reason: str) -> None:
        """Ask all workers to end after the step they are in, with a checkpoint; those too that connect later."""
        self._server.call(self._server.tell_all, {"stop": reason}, True)

    def abort(self, reason: str) -> None:
        """End all workers at once."""
        self._server.call(self._abort, reason)

    def tell_host(self, node: int, message: Message) -> None:
        """Tell the launcher of the host with this place in the order of hosts."""
        self._server.call(self._tell_host, self.hosts.order[node], message)

    def hear_out(self, seconds: float) -> None:
        """Wait until all is read that ended workers said: their connections come to an end then. At most so long."""
        deadline = time.monotonic() + seconds
        while self._server.those("worker") and time.monotonic() < deadline:
            time.sleep(0.005)

    def close(self) -> None:
        """Close every connection and end the thread."""
        self._server.close()

    # ------------------------------------------------------------- peers; see `Host`

    def admit(self, peer: Peer, who: Message) -> Message:
        """Let a worker in that was not here before, and hosts until all have come."""
        if peer.role == "node":
            peer.number = self.hosts.free()
        reason = self._refuse(peer)
        return {"refused": reason} if reason else {"welcome": self.roster.expected, "brief": self._brief}

    def _refuse(self, peer: Peer) -> str | None:
        """Why this peer may not come in; None if it may."""
        if (peer.role, peer.number) in self._server.peers:
            return f"{peer.role} {peer.number} is here already"
        if peer.role == "worker" and self.roster.has_lost(peer.number):
            return "it was evicted: the others continued without it"
        if peer.role == "node" and peer.number >= self.hosts.nodes:
            return f"all {self.hosts.nodes} hosts of this run are here already"
        return None

    def came(self, peer: Peer, who: Message) -> None:
        """Enter a worker into the roster, or number all workers once all hosts have come."""
        if peer.role == "worker":
            self.roster = self.roster.join(peer.number)
            self._notify("connected", peer.number, {"host": peer.host, "pid": peer.pid})
            return
        self.hosts = self.hosts.come(peer.number, int(who["workers"]))
        self._tell_hosts()
        if len(self.hosts.workers) == self.hosts.nodes:
            self._assign()

    def gone(self, peer: Peer, reason: str) -> None:
        """A worker is lost, or a host, with all of its workers."""
        if self._ending:
            return
        if peer.role == "worker":
            self._lost(peer.number, reason, peer.host)
            return
        self._notify("node_gone", peer.number, {"host": peer.host})
        if peer.number not in self.hosts.first:
            self.hosts = self.hosts.leave(peer.number)
            self._tell_hosts()
            return
        for worker in self.hosts.workers_of(peer.number):
            self._lost(worker, f"its host {peer.host} left", peer.host, with_host=True)

    def broken(self, peer: Peer, error: Exception) -> None:
        """Say so: it ends the run."""
        self._notify("broken", peer.number, {"message": f"{type(error).__name__}: {error}"})

    def heard(self, peer: Peer, message: Message) -> None:
        """Act on what is for the coordinator; the rest is for the record."""
        for kind, content in message.items():
            if kind == "beat":
                peer.at = content
                self._server.tell(peer, {"beat": time.time()})
            elif kind == "said":
                for one in content:
                    self.heard(peer, one)
            elif kind == "ready":
                self._ready(peer.number, int(content["committed"]), bool(content["admits"]))
            elif kind == "finish":
                self.roster = self.roster.finish(peer.number)
                self._advance()
            elif kind == "put":
                for asker, key in self._board.put(content):
                    self._server.tell(asker, {"value": [key, content[key]]})
            elif kind == "get":
                if (value := self._board.get(content, peer)) is not None:
                    self._server.tell(peer, {"value": [content, value]})
            elif kind == "lose":
                self._lost(int(content["worker"]), str(content["reason"]))
            elif kind == "torn":
                self._torn(int(content), peer)
            elif kind == "stuck":
                self._notify("stuck", peer.number, {**content, "others": self._whereabouts(peer)})
            else:
                if kind == "step":
                    self._recorded = max(self._recorded, int(content["step"]))
                elif kind == "failed":  # the run ends: the others do not continue without this one
                    self._ending = True
                elif kind == "withdrew":  # before it had the state of the others, which continue without it
                    self._lost(peer.number, str(content))
                    return
                self._notify(kind, peer.number, content)

    # ------------------------------------------------------------- what follows

    def _notify(self, kind: str, worker: int, content: Message) -> None:
        if self._heard:
            self.notices.put((kind, worker, content))

    def _whereabouts(self, but: Peer) -> dict[str, str]:
        return {peer.name: peer.at for peer in self._server.those("worker") if peer is not but}

    def _tell_hosts(self) -> None:
        """Say how many hosts are here, to those that wait for the others."""
        here = {"here": len(self.hosts.workers), "of": self.hosts.nodes}
        for peer in self._server.those("node"):
            self._server.tell(peer, {"hosts": here})
        self._notify("hosts", 0, here)

    def _tell_host(self, host: int, message: Message) -> None:
        for peer in self._server.those("node"):
            if peer.number == host:
                self._server.tell(peer, message)

    def _assign(self) -> None:
        """All hosts are here: their order is known, and how many workers the first generation has."""
        following = self._server.those("node")
        self.hosts = self.hosts.numbered({peer.number: peer.host for peer in following})
        total = sum(self.hosts.workers.values())
        self.roster = dataclasses.replace(self.roster, expected=total)
        self._notify("assigned", 0, {"workers": [self.hosts.workers[host] for host in self.hosts.order]})

    def _advance(self) -> None:
        """Let all leave, or begin the next generation, if it is time."""
        if all_finished(self.roster):
            self._ending = True
            self._server.tell_all({"farewell": True})
            self._notify("finished", 0, {})
            return
        step = next_generation(self.roster)
        if step is None:
            return
        self.roster, go = step
        self._board.clear()
        self._server.tell_all({"go": dataclasses.asdict(go), "recorded": self._recorded})
        self._notify("go", 0, {**dataclasses.asdict(go), "at": time.monotonic()})

    def _ready(self, worker: int, committed: int, admits: bool) -> None:
        self.roster = self.roster.report(worker, committed, admits=admits)
        if worker in self.roster.waiting:
            self._server.tell_all({"newcomers": sorted(self.roster.waiting)})
        self._advance()

    def _lost(self, worker: int, reason: str, host: str = "", *, with_host: bool = False) -> None:
        if self._ending or self.roster.has_lost(worker):
            return
        generation, was_member = self.roster.generation, worker not in self.roster.invited
        self.roster = self.roster.lose(worker, reason)
        peer = self._server.drop("worker", worker, {"evicted": reason})
        if not was_member:  # the others have not counted on it
            self._server.tell_all({"newcomers": sorted(self.roster.waiting)})
            self._notify("kept_out", worker, {"reason": reason, "with_host": with_host})
            return
        self._server.tell_all({"break": generation, "lost": worker, "reason": reason})
        host = peer.host if peer is not None else host
        seen = {"host": host, "reason": reason, "left": len(self.roster.alive), "at": time.monotonic()}
        self._notify("lost", worker, {**seen, "with_host": with_host})
        self._advance()

    def _invite(self, worker: int, node: int) -> None:
        self.roster, self.hosts = self.roster.invite(worker), self.hosts.start_later(worker, node)

    def _torn(self, generation: int, peer: Peer) -> None:
        """A collective failed though no member was lost (a flaky link): all members regroup."""
        if generation == self.roster.generation and self.roster.formed and not self._ending:
            self.roster = self.roster.tear()
            reason = f"{peer.name} saw a collective fail"
            self._server.tell_all({"break": generation, "lost": None, "reason": reason})
            self._notify("torn", peer.number, {"generation": generation})

    def _abort(self, reason: str) -> None:
        self._ending = True
        self._server.tell_all({"abort": reason}, True)
