"""The launcher's end of the team: one connection per worker, on which losses are noticed and generations announced.

A hub runs in a thread of its own, so that it works in a notebook and beside a progress bar. All of its state lives in
that thread; the outside talks to it through `lose`, `ask_to_stop`, `abort` and listens on `notices`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from cordee.core.errors import RendezvousError
from cordee.group.roster import Roster
from cordee.group.tls import ServerTls, make_server_tls
from cordee.group.wire import HEADER, MAX_FRAME, Address, Message, nonce, pack, proof, proven

BEAT_S = 0.5
"""How often workers and launchers say that they are there. Losses on one host are noticed without it, at once."""
STALL_S = 1.5
"""A beat that comes so late says that its own process did not run: that is not the others' silence."""
AGENT_SILENCE_S = 3.0
"""A launcher does nothing but watch: when it is silent for so long, its host or the network to it is gone."""
WORKER_SILENCE_S = 60.0
"""A worker's Python may be held up by the user's code; its own launcher sees much sooner whether it is alive."""
HUB_SILENCE_S = 10.0
"""On another host a lost hub may look like silence: a worker that hears nothing for so long ends itself."""
HANDSHAKE_S = 10.0
GREETING = 4096
"""Bytes that a client may send before it has shown the token."""


@dataclasses.dataclass
class _Peer:
    """One connection: a worker, or the launcher of another host."""

    role: str
    number: int
    host: str
    writer: asyncio.StreamWriter
    pid: int = 0
    seen: float = 0.0
    at: str = "starting"
    """What it said it was doing last; named when others waited for it in vain."""

    @property
    def name(self) -> str:
        return f"{self.role} {self.number} on {self.host}"


class Hub:
    """Membership of one run: accepts workers, notices losses, forms generations, passes messages on."""

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
        self.notices: queue.SimpleQueue[tuple[str, int, Message]] = queue.SimpleQueue()
        self._heard = heard
        self._brief = dict(brief or {})
        self.roster = Roster(expected=expected)
        self._token = bind.token
        self._nodes = nodes
        self._counts = {0: workers_here}
        """Workers of each node, and below the first worker's number there."""
        self._first: dict[int, int] = {}
        self._tls: ServerTls | None = make_server_tls() if bind.tls else None
        self._peers: dict[tuple[str, int], _Peer] = {}
        self._values: dict[str, str] = {}
        self._askers: dict[str, list[_Peer]] = {}
        self._recorded = -1
        self._standing: Message | None = None
        """What every peer is told, whenever it connects: that the run stops."""
        self._ending = False
        self._ticked = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.base_events.Server | None = None
        listener = _listen(bind.host, bind.port)
        self.address = dataclasses.replace(bind, port=listener.getsockname()[1])
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="cordee-hub", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------- from other threads

    def lose(self, worker: int, reason: str) -> None:
        """Say that a worker is gone (its process ended, or it was stopped)."""
        self._call(self._lost, worker, reason)

    def ask_to_stop(self, reason: str) -> None:
        """Ask all workers to end after the step they are in, with a checkpoint; those too that connect later."""
        self._call(self._tell_all, {"stop": reason}, True)

    def abort(self, reason: str) -> None:
        """End all workers at once."""
        self._call(self._abort, reason)

    def hear_out(self, seconds: float) -> None:
        """Wait until all is read that ended workers said: their connections come to an end then. At most so long."""
        deadline = time.monotonic() + seconds
        while any(role == "worker" for role, _ in list(self._peers)) and time.monotonic() < deadline:
            time.sleep(0.005)

    def close(self) -> None:
        """Close every connection and end the thread."""
        if self._thread.is_alive():
            self._started.wait(5)
            self._call(self._loop.stop)
            self._thread.join(timeout=5)

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: no peer is left to tell
            self._loop.call_soon_threadsafe(function, *args)

    # ------------------------------------------------------------- the thread

    def _run(self, listener: socket.socket) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._serve, sock=listener, ssl=self._tls.context if self._tls else None)
        self._server = self._loop.run_until_complete(start)
        self._started.set()
        self._loop.call_later(BEAT_S, self._tick)
        self._loop.run_forever()
        self._server.close()
        for peer in self._peers.values():
            peer.writer.close()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer = await asyncio.wait_for(self._greet(reader, writer), HANDSHAKE_S)
        except asyncio.CancelledError:
            peer = None
        except Exception:  # whatever a stranger sends: it is not let in, and that is all
            peer = None
        if peer is None:
            writer.close()
            return
        try:
            while True:
                self._handle(peer, await _read(reader))
        except (OSError, asyncio.IncompleteReadError, ValueError):
            self._gone(peer)
        except asyncio.CancelledError:  # the hub closes; raised further, asyncio would call it an error
            pass
        except Exception as error:
            self._notify(("broken", peer.number, {"message": f"{type(error).__name__}: {error}"}))
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Peer | None:
        certificate = self._tls.certificate if self._tls else b""
        theirs, mine = str((await _read(reader, GREETING)).get("nonce")), nonce()
        writer.write(pack({"nonce": mine, "proof": proof(self._token, "hub", certificate, theirs, mine)}))
        answer = await _read(reader, GREETING)
        if not proven(answer.get("proof"), proof(self._token, "worker", certificate, theirs, mine)):
            return None
        who = answer["who"]
        free = next(number for number in itertools.count(1) if number not in self._counts)
        number = free if who["role"] == "node" else int(who["number"])
        peer = _Peer(who["role"], number, str(who["host"]), writer, int(who.get("pid", 0)), time.monotonic())
        reason = self._refuse(peer)
        welcome = {"welcome": self.roster.expected, "brief": self._brief}
        writer.write(pack({"refused": reason} if reason else welcome))
        if reason:
            return None
        self._peers[peer.role, peer.number] = peer
        if self._standing is not None:
            self._tell(peer, self._standing)
        if peer.role == "worker":
            self.roster = self.roster.join(peer.number)
            self._notify(("joined", peer.number, {"host": peer.host, "pid": peer.pid}))
        else:
            self._counts[peer.number] = int(who["workers"])
            self._tell_hosts()
            self._assign()
        return peer

    def _refuse(self, peer: _Peer) -> str | None:
        """Why this peer may not come in; None if it may."""
        if (peer.role, peer.number) in self._peers:
            return f"{peer.role} {peer.number} is here already"
        if peer.role == "worker" and any(worker == peer.number for worker, _ in self.roster.lost):
            return "it was evicted: the others continued without it"
        if peer.role == "node" and peer.number >= self._nodes:
            return f"all {self._nodes} hosts of this run are here already"
        return None

    def _tell_hosts(self) -> None:
        """Say how many hosts are here, to those that wait for the others."""
        here = {"here": len(self._counts), "of": self._nodes}
        for (role, _), peer in self._peers.items():
            if role == "node":
                self._tell(peer, {"hosts": here})
        self._notify(("hosts", 0, here))

    def _assign(self) -> None:
        """When all hosts are here: number the workers through, host by host, by the names of the hosts that follow."""
        if len(self._counts) < self._nodes:
            return
        names = {number: peer.host for (role, number), peer in self._peers.items() if role == "node"}
        total = 0
        for node in sorted(self._counts, key=lambda node: (names.get(node, ""), node)):  # we have no peer: first
            self._first[node] = total
            total += self._counts[node]
        self.roster = dataclasses.replace(self.roster, expected=total)
        for (role, number), peer in self._peers.items():
            if role == "node":
                self._tell(peer, {"assign": self._first[number], "total": total})
        self._notify(("assigned", 0, {"total": total, "hosts": len(self._counts)}))

    # ------------------------------------------------------------- messages

    def _handle(self, peer: _Peer, message: Message) -> None:
        if self._peers.get((peer.role, peer.number)) is not peer:
            return  # evicted: what it still sends belongs to a former generation
        peer.seen = time.monotonic()
        for kind, content in message.items():
            if kind == "beat":
                peer.at = content
                self._tell(peer, {"beat": time.time()})
            elif kind == "said":
                for one in content:
                    self._handle(peer, one)
            elif kind == "ready":
                self.roster = self.roster.report(peer.number, int(content))
                self._advance()
            elif kind == "finish":
                self.roster = self.roster.finish(peer.number)
                self._advance()
            elif kind == "put":
                self._values.update(content)
                for key in content:
                    for asker in self._askers.pop(key, []):
                        self._tell(asker, {"value": [key, content[key]]})
            elif kind == "get":
                if content in self._values:
                    self._tell(peer, {"value": [content, self._values[content]]})
                else:
                    self._askers.setdefault(content, []).append(peer)
            elif kind == "lose":
                self._lost(int(content["worker"]), str(content["reason"]))
            elif kind == "torn":
                self._torn(int(content), peer)
            elif kind == "stuck":
                self._notify(("stuck", peer.number, {"awaited": content, "others": self._whereabouts(peer)}))
            else:
                if kind == "step":
                    self._recorded = max(self._recorded, int(content["step"]))
                elif kind == "failed":  # the run ends: the others do not continue without this one
                    self._ending = True
                self._notify((kind, peer.number, content))

    def _notify(self, notice: tuple[str, int, Message]) -> None:
        if self._heard:
            self.notices.put(notice)

    def _whereabouts(self, but: _Peer) -> dict[str, str]:
        return {peer.name: peer.at for peer in self._peers.values() if peer.role == "worker" and peer is not but}

    def _advance(self) -> None:
        if self.roster.all_finished():
            self._ending = True
            self._tell_all({"farewell": True})
            self._notify(("finished", 0, {}))
            return
        step = self.roster.next_generation()
        if step is None:
            return
        self.roster, go = step
        self._values.clear()
        self._tell_all({"go": dataclasses.asdict(go), "recorded": self._recorded})
        self._notify(("go", 0, {**dataclasses.asdict(go), "at": time.monotonic()}))

    def _gone(self, peer: _Peer) -> None:
        if self._peers.get((peer.role, peer.number)) is not peer:
            return
        del self._peers[peer.role, peer.number]
        if self._ending:
            return
        if peer.role == "worker":
            self._lost(peer.number, "its connection closed: the process ended")
            return
        self._notify(("node_gone", peer.number, {"host": peer.host}))
        if peer.number not in self._first:  # left before the run began: another host may take its place
            del self._counts[peer.number]
            self._tell_hosts()
            return
        first = self._first[peer.number]
        for worker in range(first, first + self._counts[peer.number]):
            self._lost(worker, f"its host {peer.host} left")

    def _lost(self, worker: int, reason: str) -> None:
        if self._ending or any(gone == worker for gone, _ in self.roster.lost):
            return
        generation = self.roster.generation
        self.roster = self.roster.lose(worker, reason)
        peer = self._peers.pop(("worker", worker), None)
        if peer is not None:
            self._tell(peer, {"evicted": reason})
            peer.writer.close()
        self._tell_all({"break": generation, "lost": worker, "reason": reason})
        host = peer.host if peer is not None else ""
        seen = {"host": host, "reason": reason, "left": len(self.roster.alive), "at": time.monotonic()}
        self._notify(("lost", worker, seen))
        self._advance()

    def _torn(self, generation: int, peer: _Peer) -> None:
        """A collective failed though no member was lost (a flaky link): all members regroup."""
        if generation == self.roster.generation and self.roster.formed and not self._ending:
            self.roster = self.roster.tear()
            self._tell_all({"break": generation, "lost": None, "reason": f"{peer.name} saw a collective fail"})
            self._notify(("torn", peer.number, {"generation": generation}))

    def _abort(self, reason: str) -> None:
        self._ending = True
        self._tell_all({"abort": reason}, True)

    def _tell_all(self, message: Message, later: bool = False) -> None:
        """Tell this to all peers, and if it still holds `later`, to those that connect then."""
        if later:
            self._standing = message
        for peer in list(self._peers.values()):
            self._tell(peer, message)

    def _tell(self, peer: _Peer, message: Message) -> None:
        if not peer.writer.is_closing():
            peer.writer.write(pack(message))

    def _tick(self) -> None:
        """Look for silent peers, several times a second."""
        now = time.monotonic()
        if now - self._ticked > STALL_S:  # we were the silent one (stopped, or starved): forgive all peers once
            for peer in self._peers.values():
                peer.seen = now
        self._ticked = now
        for peer in list(self._peers.values()):
            limit = WORKER_SILENCE_S if peer.role == "worker" else AGENT_SILENCE_S
            if now - peer.seen > limit and peer.role == "worker":
                self._lost(peer.number, f"silent for {limit:.0f} s")
            elif now - peer.seen > limit:
                peer.writer.close()
                self._gone(peer)
        self._loop.call_later(BEAT_S, self._tick)


async def _read(reader: asyncio.StreamReader, limit: int = MAX_FRAME) -> Message:
    """The next message; `IncompleteReadError` at the end."""
    (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    if length > limit:
        raise ValueError(f"a frame of {length} bytes")
    message: Message = json.loads(await reader.readexactly(length))
    return message


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise RendezvousError(
            f"cannot listen at {host}:{port}: {error.strerror}. Choose another port, or end the process that holds it"
        ) from error
    listener.listen(512)
    return listener
