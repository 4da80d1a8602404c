"""Messages between workers and hub: JSON in length-prefixed frames, after a handshake that proves the token both ways.

The token itself never travels. Each side shows an HMAC over both nonces and over the server's certificate, so a
man in the middle of a TLS connection (who has another certificate) cannot pass the proofs on.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from cordee.core.errors import CordeeError, RendezvousError, SecurityError
from cordee.core.events import encode
from cordee.group.messages import Evicted, Hello, Message, Welcome, Who, decode_message
from cordee.group.tls import check_dates
from cordee.group.transport.sockets import keep

T = TypeVar("T")
HEADER = struct.Struct("!I")
LOOPBACK = "127.0.0.1"
MAX_FRAME = 64 << 20
"""Larger frames are refused: nothing of ours is near this size, so it is not one of us at the other end."""


class TooLong(ValueError):
    """A head that announces a longer message than is taken."""


class Cut(ValueError):
    """The other end hung up in the middle of a message."""


class Refused(RendezvousError):
    """The coordinator does not let this peer in, and will not."""

    reason = ""


@dataclass(frozen=True)
class Address:
    """Where a hub listens and what is needed to be let in."""

    host: str
    port: int
    token: str
    tls: bool = False

    def __str__(self) -> str:
        """Never shows the token."""
        return f"{self.host}:{self.port}"

    __repr__ = __str__


def pack(message: object) -> bytes:
    """One message as a frame."""
    body = encode(message)
    return HEADER.pack(len(body)) + body


def length_of(head: bytes, limit: int = MAX_FRAME) -> int:
    """How many bytes follow the head of a frame; `ValueError` for what is no head of ours."""
    if len(head) < HEADER.size:
        raise ValueError("the frame ended in its head")
    (length,) = HEADER.unpack(head)
    if length > limit:
        raise TooLong(f"a frame of {length} bytes, where at most {limit} were expected")
    return int(length)


def unpack(head: bytes, body: bytes, decode: Callable[[bytes], T]) -> T:
    """The message of a frame; `ValueError` for what is none."""
    if len(body) != length_of(head):
        raise ValueError("the frame ended in its body")
    return decode(body)


def nonce() -> str:
    """Fresh random text, so that a recorded handshake is of no use."""
    return secrets.token_hex(16)


def proof(token: str, side: str, certificate: bytes, *nonces: str) -> str:
    """What `side` shows to prove that it knows the token on this very connection."""
    text = "|".join([side, hashlib.sha256(certificate).hexdigest(), *nonces]).encode()
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def proven(given: str, expected: str) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def client_tls() -> ssl.SSLContext:
    """TLS without certificate authorities: the handshake above binds the certificate to the token instead."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class Connection:
    """A worker's end of the wire: blocking, one reader thread, any number of writers behind a lock."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket whose handshake is done."""
        self.sock = sock
        self._reader = sock.makefile("rb")

    def send(self, message: Message) -> None:
        """Send one message; the caller holds the writers' lock."""
        self.sock.sendall(pack(message))

    def receive(self) -> Message | None:
        """The next message; None when the other end has gone."""
        try:
            head = self._reader.read(HEADER.size)
            return unpack(head, self._reader.read(length_of(head)), decode_message)
        except (OSError, ValueError, RecursionError):
            return None

    def close_writing(self) -> None:
        """Say that nothing more comes; the other end reads what is under way and then closes."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_WR)  # an SSLSocket's own would end decryption too

    def give_up(self) -> None:
        """Wake the reader: it finds that the other end has gone. That end is not told, and so hears silence too."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RD)

    def close(self) -> None:
        """Wake the reader and release the socket."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._reader.close()
        self.sock.close()


def connect(address: Address, who: Who, timeout_s: float = 10.0) -> tuple[Connection, Welcome]:
    """Reach the hub and introduce ourselves; returns the connection and the hub's welcome."""
    try:
        sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
    except OSError as error:
        raise RendezvousError(f"could not reach the launcher at {address}: {error}") from error
    keep(sock)  # a worker may look for the coordinator while it forms a group
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    certificate = b""
    try:
        if address.tls:
            wrapped = client_tls().wrap_socket(sock)
            certificate = wrapped.getpeercert(binary_form=True) or b""
            sock = wrapped
        connection = Connection(sock)
        try:
            if address.tls:
                check_dates(certificate)
            welcome = _introduce(connection, address, who, certificate)
        except BaseException:
            connection.close()
            raise
    except (OSError, ValueError) as error:
        sock.close()
        raise SecurityError(f"the handshake with {address} failed: {error}; is it a Cordée launcher?") from error
    sock.settimeout(None)
    return connection, welcome


def _introduce(connection: Connection, address: Address, who: Who, certificate: bytes) -> Welcome:
    mine = nonce()
    connection.send(Hello(mine))
    challenge = connection.receive()
    if not isinstance(challenge, Hello):
        raise RendezvousError(f"{address} did not answer as a Cordée launcher does: is another program on this port?")
    nonces = (mine, challenge.nonce)
    if not proven(challenge.proof, proof(address.token, "hub", certificate, *nonces)):
        raise SecurityError(f"{address} could not show that it knows the token; nothing was sent to it")
    connection.send(msgspec.structs.replace(who, proof=proof(address.token, "worker", certificate, *nonces)))
    answer = connection.receive()
    if not isinstance(answer, Welcome):
        kind = Refused if isinstance(answer, Evicted) else RendezvousError
        reason = answer.reason if isinstance(answer, Evicted) else "connection closed (a wrong token?)"
        error = kind(f"the launcher at {address} refused this worker: {reason}")
        if isinstance(error, Refused):
            error.reason = reason
        raise error
    return answer


def own_address_towards(host: str, port: int) -> str:
    """This host's address on the route to another one; nothing is sent to find it out."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise CordeeError(f"no route to {host}: {error}") from error
