"""The coordinator's end of the wire: one connection per worker or following host, served by a thread of its own.

So it works in a notebook and beside a progress bar. Peers are let in, heard and told in that thread alone; other
threads come in by `call`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from cordee.core.errors import RendezvousError
from cordee.group.client import BEAT_S, STALL_S
from cordee.group.messages import Evicted, Hello, Message, Stale, Welcome, Who, decode_message
from cordee.group.strangers import CROWDED, Strangers, Unproven, why
from cordee.group.tls import Certificates, ServerTls
from cordee.group.wire import HEADER, MAX_FRAME, Address, Cut, length_of, nonce, pack, proof, proven, unpack

SILENCE_S = {"worker": 60.0, "node": 3.0, "server": 5.0, "command": 60.0}
"""When a peer counts as gone. A worker's Python may be held up by the user's code, and its own launcher sees much
sooner whether it is alive. A launcher only watches: when it is silent, its host or the network to it is gone. A
parameter server runs no code of the user's but its optimizer."""
HANDSHAKE_S = 10.0
GREETING = 4096
"""Bytes that a client may send before it has shown the token."""
MOST_STRANGERS = 512
"""Connections at a time that have not shown the token yet."""
PART_S = 0.5
"""How long peers may take to hang up after us."""
PAUSE_S = 0.5
"""Until connections are accepted again, when this process may not open another one."""


@dataclasses.dataclass
class Peer:
    """One connection: a worker, a parameter server, or the launcher of another host."""

    role: str
    """`worker`, `server`, `node` or `command`."""
    number: int
    host: str
    writer: asyncio.StreamWriter
    seen: float
    at: str = "starting"
    """What it said it was doing last; named when others waited for it in vain."""
    silent: bool = False
    """Whether it was given up for its silence."""
    heard: int = 0
    """The number of the last `Posted` of it that was passed on."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.role} {self.number} on {self.host}"


class Host(Protocol):
    """Decides what becomes of the peers of a server; called by its thread."""

    def admit(self, peer: Peer, who: Who) -> Welcome | Evicted | Stale:
        """The answer to a peer that has shown the token; it is let in with a `Welcome`."""

    def came(self, peer: Peer, who: Who) -> None:
        """It is one of `peers` now."""

    def heard(self, peer: Peer, message: Message) -> None:
        """It said something."""

    def gone(self, peer: Peer, reason: str) -> None:
        """Its connection ended, or it was silent for too long; it is none of `peers` any more."""

    def broken(self, peer: Peer, error: Exception) -> None:
        """What it said could not be handled: a defect."""


class Server:
    """Connections to the peers of one run."""

    def __init__(self, bind: Address, host: Host, strangers: Strangers, listener: socket.socket | None = None) -> None:
        """Listen at `bind` (port 0 picks one), or by a `listener` there; peers are let in from `start` on."""
        self._host, self._strangers = host, strangers
        self._unproven = 0
        """Connections that have not shown the token yet."""
        self._token = bind.token
        self._certificates = Certificates(tls=bind.tls)
        self.peers: dict[tuple[str, int], Peer] = {}
        self._standing: Message | None = None
        """What every peer is told, whenever it connects: that the run stops."""
        self._ticked = time.monotonic()
        listener = listener or listen(bind.host, bind.port)
        self.address = dataclasses.replace(bind, port=listener.getsockname()[1])
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="cordee-hub", daemon=True)

    def start(self) -> None:
        """Let peers in."""
        self._thread.start()
        self._started.wait()

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Let the server's thread call this; from any other one."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: no peer is left to tell
            self._loop.call_soon_threadsafe(function, *args)

    def hear_out(self, seconds: float) -> None:
        """Wait until the connections of all workers and servers have ended, at most so long; from another thread."""
        deadline = time.monotonic() + seconds
        while (self.those("worker") or self.those("server")) and time.monotonic() < deadline:
            time.sleep(0.005)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Let the server's thread, which calls this, call the function after so long."""
        self._loop.call_later(seconds, function)

    def close(self) -> None:
        """Close every connection and end the thread."""
        self.call(lambda: self._closing.set())
        self._thread.join(timeout=5)

    def those(self, role: str) -> list[Peer]:
        """The peers of one role."""
        return [peer for peer in list(self.peers.values()) if peer.role == role]

    def fresh(self, role: str) -> list[Peer]:
        """The peers of one role that have said something just now."""
        return [peer for peer in self.those(role) if time.monotonic() - peer.seen < STALL_S]

    def name_of(self, worker: int) -> str:
        """What a worker is called, with its host if it is here."""
        peer = self.peers.get(("worker", worker))
        return f"worker {worker}" if peer is None else peer.name

    def whereabouts(self, but: Peer) -> dict[str, str]:
        """What the other workers do, by name."""
        return {peer.name: peer.at for peer in self.those("worker") if peer is not but}

    def tell(self, peer: Peer, message: Message) -> None:
        """Tell one peer."""
        if not peer.writer.is_closing():
            peer.writer.write(pack(message))

    def tell_one(self, role: str, number: int, message: Message) -> None:
        """Tell the peer of this role and number, if it is here."""
        if (peer := self.peers.get((role, number))) is not None:
            self.tell(peer, message)

    def tell_all(self, message: Message, later: bool = False) -> None:
        """Tell this to all peers, and if it still holds `later`, to those that connect then."""
        if later:
            self._standing = message
        for peer in list(self.peers.values()):
            self.tell(peer, message)

    def drop(self, number: int, last_word: Message, role: str = "worker") -> Peer | None:
        """Hang up on a peer; None if it is not there."""
        peer = self.peers.pop((role, number), None)
        if peer is not None:
            self.tell(peer, last_word)
            peer.writer.close()
        return peer

    # ------------------------------------------------------------- the thread

    def _run(self, listener: socket.socket) -> None:
        asyncio.run(self._listen(listener))

    async def _listen(self, listener: socket.socket) -> None:
        """Until `close`; whatever is under way is given up then."""
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._loop.call_later(BEAT_S, self._tick)
        accepting = asyncio.create_task(self._accept(listener))
        self._started.set()
        await self._closing.wait()
        accepting.cancel()
        listener.close()
        for peer in list(self.peers.values()):  # in good order, or the system may take back our last words to it
            with contextlib.suppress(OSError):  # it is gone at this moment
                peer.writer.write_eof() if peer.writer.can_write_eof() else peer.writer.close()
        until = self._loop.time() + PART_S
        while self.peers and self._loop.time() < until:
            await asyncio.sleep(0.002)
        for peer in self.peers.values():
            peer.writer.close()

    async def _accept(self, listener: socket.socket) -> None:
        """By ourselves: `asyncio.start_server` does not say when a TLS handshake fails, nor with which peer."""
        listener.setblocking(False)
        serving: set[asyncio.Task[None]] = set()
        while True:
            try:
                sock, (address, *_) = await self._loop.sock_accept(listener)
            except OSError:  # too many open files, or it has hung up already
                await asyncio.sleep(PAUSE_S)
                continue
            if self._unproven >= MOST_STRANGERS:
                sock.close()
                self._strangers.refuse(address, CROWDED)
                continue
            self._unproven += 1
            serving.add(task := asyncio.create_task(self._serve(sock, address)))
            task.add_done_callback(serving.discard)

    async def _serve(self, sock: socket.socket, address: str) -> None:
        """One connection, until it ends."""
        peer = writer = None
        try:
            try:
                tls = self._certificates.now()
                reader, writer = await self._open(sock, tls)
                greeting = self._greet(reader, writer, tls.certificate if tls else b"")
                peer = await asyncio.wait_for(greeting, HANDSHAKE_S)
            except Exception as error:  # whatever a stranger sends: it is not let in, and that is all
                self._strangers.refuse(address, why(error))
            finally:
                self._unproven -= 1
            while peer is not None:
                message = await _read(reader)
                if self._is_here(peer):  # or it was evicted: what it still sends belongs to a former generation
                    peer.seen = time.monotonic()
                    self._host.heard(peer, message)
        except Exception as error:
            assert peer is not None
            if isinstance(error, OSError | Cut | asyncio.IncompleteReadError):
                self._gone(peer, "its connection closed: the process ended")
            else:
                self._host.broken(peer, error)
        finally:
            writer.close() if writer is not None else sock.close()

    async def _open(
        self, sock: socket.socket, tls: ServerTls | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        context, limit_s = (tls.context, HANDSHAKE_S) if tls else (None, None)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol, sock, ssl=context, ssl_handshake_timeout=limit_s
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, certificate: bytes
    ) -> Peer | None:
        who = await _prove(reader, writer, self._token, certificate)
        peer = Peer(who.role, who.number, who.host, writer, time.monotonic())
        answer = self._host.admit(peer, who)
        writer.write(pack(answer))
        if not isinstance(answer, Welcome):
            return None
        self.peers[peer.role, peer.number] = peer
        if self._standing is not None:
            self.tell(peer, self._standing)
        self._host.came(peer, who)
        return peer

    def _is_here(self, peer: Peer) -> bool:
        return self.peers.get((peer.role, peer.number)) is peer

    def _gone(self, peer: Peer, reason: str) -> None:
        if self._is_here(peer):
            del self.peers[peer.role, peer.number]
            self._host.gone(peer, reason)

    def _tick(self) -> None:
        """Look for silent peers, several times a second."""
        now = time.monotonic()
        if now - self._ticked > STALL_S:  # we were the silent one (stopped, or starved): forgive all peers once
            for peer in self.peers.values():
                peer.seen = now
        self._ticked = now
        for peer in list(self.peers.values()):
            limit = SILENCE_S[peer.role]
            if now - peer.seen > limit:
                reason = f"silent for {limit:.0f} s"
                self.tell(peer, Evicted(reason))
                peer.writer.close()
                peer.silent = True
                self._gone(peer, reason)
        self._loop.call_later(BEAT_S, self._tick)


async def _prove(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, certificate: bytes) -> Who:
    """Who is at the other end, once both have shown that they know the token."""
    hello, mine = await _read(reader, GREETING), nonce()
    if not isinstance(hello, Hello):
        raise Unproven
    writer.write(pack(Hello(mine, proof(token, "hub", certificate, hello.nonce, mine))))
    who, expected = await _read(reader, GREETING), proof(token, "worker", certificate, hello.nonce, mine)
    if not isinstance(who, Who) or not proven(who.proof, expected):
        raise Unproven
    return who


async def _read(reader: asyncio.StreamReader, limit: int = MAX_FRAME) -> Message:
    """The next message; `IncompleteReadError` at the end."""
    head = b""
    try:
        head = await reader.readexactly(HEADER.size)
        return unpack(head, await reader.readexactly(length_of(head, limit)), decode_message)
    except asyncio.IncompleteReadError as error:
        if head or error.partial:
            raise Cut("closed within a message") from error
        raise


def listen(host: str, port: int) -> socket.socket:
    """A listener there; port 0 picks one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise RendezvousError(
            f"cannot listen at {host}:{port}: {os.strerror(error.errno or 0)}. Choose another port, or end the process "
            "that holds it"
        ) from error
