"""Connections that carry bytes beside messages: a head in JSON, then tensors or buffers as they lie in memory.

The same handshake as with the coordinator, so the same token, and TLS where the run has it. Nothing is pickled, and no
length is taken from the other end: who receives knows the shapes before the bytes come. Every wait has a limit: the
time in which no byte comes or goes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cordee.core.errors import CordeeError
from cordee.group.messages import Hello, Welcome, Who, decode_message
from cordee.group.strangers import CROWDED, PEER, Strangers, Unproven, why
from cordee.group.tls import Certificates
from cordee.group.wire import HEADER, Address, Cut, connect, length_of, nonce, pack, proof, proven, unpack

if TYPE_CHECKING:  # torch takes seconds to import, and files travel without it
    from torch import Tensor

    Buffer = Tensor | memoryview

T = TypeVar("T")
CHUNK = 1 << 20
"""Bytes that are given to the network at once."""
MOST_HEAD = 4 << 20
"""Larger heads are refused."""
GREETING = 4096
"""Bytes of a head before the token was shown."""
HANDSHAKE_S = 10.0
MOST_STRANGERS = 64
"""Connections at a time that have not shown the token yet."""
PAUSE_S = 0.5
"""Until connections are accepted again, when this process may not open another one."""
MOST_PARTS = 512
"""Buffers that one call of the system may take."""


class Gone(ConnectionError):
    """The other end has gone, is silent, or does not speak as it should."""


def bytes_of(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Their memory, without a copy; tensors are on the CPU and contiguous."""
    return [part for part in map(_memory, buffers) if len(part)]


def _memory(one: Buffer) -> memoryview:
    if isinstance(one, memoryview):
        return one.cast("B")
    import torch

    return one.detach().reshape(-1).view(torch.uint8).numpy().data


class Tally:
    """Bytes that connections have carried, heads and tensors; any thread may count."""

    def __init__(self) -> None:
        """None yet."""
        self.sent = self.near = self.received = 0
        """`near`: the part of `sent` that did not leave this host."""
        self._turn = threading.Lock()

    def count(self, *, sent: int = 0, received: int = 0, near: bool) -> None:
        """So many more."""
        with self._turn:
            self.sent += sent
            self.near += sent if near else 0
            self.received += received

    def take(self) -> tuple[int, int, int]:
        """Sent, near and received since this was asked last."""
        with self._turn:
            taken = self.sent, self.near, self.received
            self.sent = self.near = self.received = 0
        return taken


class Link:
    """One end of such a connection; one thread at a time sends or receives."""

    def __init__(self, sock: socket.socket, silence_s: float, tally: Tally) -> None:
        """Over a connected socket; so long may pass without a byte. What it carries is counted in `tally`."""
        self._sock, self._tally = sock, tally
        self._near = _is_near(sock)
        self._plain = not isinstance(sock, ssl.SSLSocket)
        sock.settimeout(silence_s)

    def send(self, message: object, tensors: Sequence[Buffer] = ()) -> None:
        """A message, and the bytes of tensors or buffers."""
        parts = [memoryview(pack(message)), *bytes_of(tensors)]
        self._tally.count(sent=sum(map(len, parts)), near=self._near)
        try:
            if self._plain:
                self._send_plain(parts)
            else:
                for part in parts:
                    for start in range(0, len(part), CHUNK):
                        self._sock.sendall(part[start : start + CHUNK])
        except OSError as error:
            raise Gone(str(error)) from error

    def _send_plain(self, parts: list[memoryview]) -> None:
        while parts:
            sent = self._sock.sendmsg(parts[:MOST_PARTS])
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]

    def receive(self, decode: Callable[[bytes], T], most: int = MOST_HEAD) -> T:
        """The next message."""
        try:
            head = self._exactly(HEADER.size)
            body = self._exactly(length_of(head, most))
            self._tally.count(received=len(head) + len(body), near=self._near)
            return unpack(head, body, decode)
        except (OSError, ValueError, RecursionError) as error:
            raise Gone(str(error)) from error

    def ready(self) -> bool:
        """Whether something of the other end is here already, so that `receive` gives it, or its end, at once."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def receive_into(self, tensors: Sequence[Buffer]) -> None:
        """The bytes of tensors or buffers, in place; if this fails, some of them may be new."""
        parts = bytes_of(tensors)
        self._tally.count(received=sum(map(len, parts)), near=self._near)
        try:
            while parts:
                if self._plain:
                    count = self._sock.recvmsg_into(parts[:MOST_PARTS])[0]
                else:
                    count = self._sock.recv_into(parts[0][:CHUNK])
                if count == 0:
                    raise Gone("closed within a tensor")
                while parts and count >= len(parts[0]):
                    count -= len(parts.pop(0))
                if count:
                    parts[0] = parts[0][count:]
        except OSError as error:
            raise Gone(str(error)) from error

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            part = self._sock.recv(count - len(found))
            if not part and (found or count != HEADER.size):
                raise Cut("closed within a message")
            if not part:
                raise Gone("closed")
            found += part
        return bytes(found)

    def cut(self) -> None:
        """From another thread: wake the one that waits in here. It gets `Gone`, and closes the link.

        The descriptor stays open until then. If it were closed here, the next connection of the process could get its
        number, and the thread that is about to wait would wait for that one.
        """
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # an SSLSocket's own would end decryption too

    def stop_receiving(self) -> None:
        """From another thread: wake the one that waits for a message. It gets `Gone`, but may still send."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RD)

    def close(self) -> None:
        """Hang up, from the thread that sends and receives."""
        self.cut()
        self._sock.close()


def _is_near(sock: socket.socket) -> bool:
    """Whether the other end is on this host."""
    try:
        return bool(sock.getpeername()[:1] == sock.getsockname()[:1])
    except OSError:  # it has hung up
        return False


def dial(address: Address, who: Who, silence_s: float, tally: Tally | None = None) -> Link:
    """Reach a listener; `Gone` if it is not there. What is sent there is counted in `tally`."""
    try:
        connection, _ = connect(address, who, timeout_s=min(silence_s, HANDSHAKE_S))
    except CordeeError as error:
        raise Gone(str(error)) from error
    return Link(connection.sock, silence_s, tally or Tally())


class Listener:
    """Lets peers in that know the token, each served by a thread of its own."""

    strangers: Strangers | None = None
    """Counts the peers that it has refused; None: that is not told."""

    def __init__(self, interface: str, token: str, *, tls: bool, silence_s: float, port: int = 0) -> None:
        """Listen on `port`, or on one that is free."""
        self._token, self._silence_s = token, silence_s
        self.tally = Tally()
        """Of all its connections."""
        self._certificates = Certificates(tls=tls)
        self._closed = threading.Event()
        family = socket.AF_INET6 if ":" in interface else socket.AF_INET
        self._socket = socket.create_server((interface, port), family=family, backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self._unproven = threading.BoundedSemaphore(MOST_STRANGERS)

    def start(self, serve: Callable[[Link, Who], None]) -> None:
        """From now on, call `serve` for each peer; it returns when it is done with it, or raises `Gone`."""
        threading.Thread(target=self._accept, args=(serve,), name="cordee-listener", daemon=True).start()

    def close(self) -> None:
        """Let no more peers in."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self, serve: Callable[[Link, Who], None]) -> None:
        while True:
            try:
                sock, (address, *_) = self._socket.accept()
            except OSError:  # closed; or too many open files, or it has hung up already
                if self._closed.wait(PAUSE_S):
                    return
                continue
            if not self._unproven.acquire(blocking=False):
                sock.close()
                self._refuse(address, CROWDED)
                continue
            threading.Thread(target=self._greet, args=(sock, address, serve), name="cordee-link", daemon=True).start()

    def _greet(self, sock: socket.socket, address: str, serve: Callable[[Link, Who], None]) -> None:
        link = who = None
        try:
            try:
                sock.settimeout(HANDSHAKE_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                tls = self._certificates.now()
                secured = tls.context.wrap_socket(sock, server_side=True) if tls else sock
                link = Link(secured, HANDSHAKE_S, self.tally)
                who = self._prove(link, tls.certificate if tls else b"")
                secured.settimeout(self._silence_s)
            finally:
                self._unproven.release()
            serve(link, who)
        except (OSError, Unproven) as error:
            if who is None:
                self._refuse(address, why(error))
            elif isinstance(error.__cause__, ValueError) and not isinstance(error.__cause__, Cut):
                self._refuse(address, PEER)  # else the peer has gone
        finally:
            link.close() if link is not None else sock.close()

    def _refuse(self, address: str, reason: str) -> None:
        if self.strangers is not None:
            self.strangers.refuse(address, reason)

    def _prove(self, link: Link, certificate: bytes) -> Who:
        """Who is at the other end, if it shows the token."""
        mine = nonce()
        hello = link.receive(decode_message, GREETING)
        if not isinstance(hello, Hello):
            raise Unproven
        link.send(Hello(mine, proof(self._token, "hub", certificate, hello.nonce, mine)))
        who = link.receive(decode_message, GREETING)
        expected = proof(self._token, "worker", certificate, hello.nonce, mine)
        if not isinstance(who, Who) or not proven(who.proof, expected):
            raise Unproven
        link.send(Welcome({}))
        return who
