"""Attacks on our own connections: another certificate, one that has expired, a session that is replayed."""

from __future__ import annotations

import contextlib
import datetime
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from cordee.core.errors import CordeeError, RendezvousError, SecurityError
from cordee.core.events import StrangerEvent
from cordee.group import tls
from cordee.group.messages import Hello, Who
from cordee.group.tls import make_server_tls
from cordee.group.wire import HEADER, Address, client_tls, connect, nonce, pack
from cordee.runtime.coordinator.hub import Hub

TOKEN = "a" * 64
WHO = Who("worker", "here", 0)
WAIT_S = 10.0
HUNG_UP, UNPROVEN = "hung up before it showed the token", "did not show that it knows the token"


@contextlib.contextmanager
def serving(tls: bool) -> Iterator[Hub]:
    hub = Hub(Address("127.0.0.1", 0, TOKEN, tls=tls), expected=1)
    try:
        yield hub
    finally:
        hub.close()


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port at which `serve` answers one connection after the other."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(WAIT_S)
                with connection, contextlib.suppress(OSError):
                    serve(connection)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def frame(sock: socket.socket) -> bytes:
    """The next message as it comes over the wire; empty at the end."""
    with contextlib.suppress(OSError):
        head = sock.recv(HEADER.size)
        if len(head) == HEADER.size:
            body = b""
            while len(body) < HEADER.unpack(head)[0] and (part := sock.recv(HEADER.unpack(head)[0] - len(body))):
                body += part
            return head + body
    return b""


def passed_on(worker: socket.socket, hub: socket.socket) -> list[bytes]:
    """Message by message, from one to the other, until one of them hangs up; what the worker said."""
    said = []
    while sent := frame(worker):
        said.append(sent)
        hub.sendall(sent)
        if not (answer := frame(hub)):
            break
        worker.sendall(answer)
    return said


def nobody_came_in(hub: Hub, *reasons: str) -> bool:
    """And the record says of each connection why it was refused; what they did is looked at in that time."""
    told: list[str] = []
    with contextlib.suppress(queue.Empty):
        while len(told) < len(reasons) or not reasons:
            worker, event = hub.notices.get(timeout=WAIT_S if reasons else 0.1)
            assert worker == -1 and isinstance(event, StrangerEvent), "somebody came in"
            told.append(event.reason)
    time.sleep(0.1)
    assert sorted(told) == sorted(reasons)
    return hub.roster.alive == frozenset() and hub.notices.empty()


def test_a_coordinator_that_is_there_for_long_has_certificates_that_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "RENEW_S", 0.0)
    seen = set()
    with serving(tls=True) as hub:
        for number in range(2):
            connection, _ = connect(hub.address, msgspec.structs.replace(WHO, number=number))
            assert isinstance(connection.sock, ssl.SSLSocket)
            seen.add(connection.sock.getpeercert(binary_form=True))
            connection.sock.close()
    assert len(seen) == 2


def test_a_man_in_the_middle_has_another_certificate() -> None:
    """Who passes on every message between a worker and its hub is refused by the worker, which tells it nothing."""
    said: list[bytes] = []
    with serving(tls=True) as hub:
        mine = make_server_tls()

        def between(plain: socket.socket) -> None:
            with (
                mine.context.wrap_socket(plain, server_side=True) as worker,
                client_tls().wrap_socket(socket.create_connection((hub.address.host, hub.address.port))) as onwards,
            ):
                said.extend(passed_on(worker, onwards))

        with listening(between) as port, pytest.raises(SecurityError, match="could not show that it knows the token"):
            connect(Address("127.0.0.1", port, TOKEN, tls=True), WHO)
        assert nobody_came_in(hub, HUNG_UP)
    (hello,) = (json.loads(one[HEADER.size :]) for one in said)
    assert set(hello) == {"message", "nonce", "proof"} and hello["proof"] == ""


def test_a_certificate_of_another_run_is_refused() -> None:
    """A hub with another token is another run, though its certificate is as good as ours."""
    other = Hub(Address("127.0.0.1", 0, "b" * 64, tls=True), expected=1)
    try:
        with pytest.raises(SecurityError, match="could not show that it knows the token"):
            connect(Address("127.0.0.1", other.address.port, TOKEN, tls=True), WHO)
        assert nobody_came_in(other, HUNG_UP)
    finally:
        other.close()


@pytest.mark.parametrize("days", [-3, -0.01])
def test_a_certificate_that_has_expired_is_refused(days: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "make_server_tls", lambda: make_server_tls(datetime.timedelta(days=days)))
    with serving(tls=True) as hub:
        with pytest.raises(SecurityError, match=r"certificate is valid from .* check the clocks"):
            connect(hub.address, WHO)
        assert nobody_came_in(hub, HUNG_UP)


def recorded(hub: Hub) -> tuple[list[bytes], list[bytes]]:
    """Both sides of a session in which a worker was let in."""
    worker_said: list[bytes] = []
    hub_said: list[bytes] = []

    def between(worker: socket.socket) -> None:
        with socket.create_connection((hub.address.host, hub.address.port), timeout=WAIT_S) as onwards:
            for _ in range(2):
                worker_said.append(frame(worker))
                onwards.sendall(worker_said[-1])
                hub_said.append(frame(onwards))
                worker.sendall(hub_said[-1])

    with listening(between) as port:
        connection, welcome = connect(Address("127.0.0.1", port, TOKEN), WHO)
        assert welcome.settings == {}
        connection.close()
    return worker_said, hub_said


def test_a_session_is_replayed_to_the_hub_and_to_a_worker() -> None:
    """What was recorded on the wire proves nothing in another session: the other side's nonce is another one."""
    with serving(tls=False) as hub:
        worker_said, hub_said = recorded(hub)
    with serving(tls=False) as hub:
        with socket.create_connection((hub.address.host, hub.address.port), timeout=WAIT_S) as raw:
            for message in worker_said:
                raw.sendall(message)
            assert frame(raw) and frame(raw) == b""  # its nonce, and then it hangs up
        assert nobody_came_in(hub, UNPROVEN)

    def replay(worker: socket.socket) -> None:
        for message in hub_said:
            frame(worker)
            worker.sendall(message)

    with listening(replay) as port, pytest.raises(SecurityError, match="could not show that it knows the token"):
        connect(Address("127.0.0.1", port, TOKEN), WHO)


def test_a_proof_is_not_sent_back_to_its_sender() -> None:
    """Whoever knows no token and repeats what the hub showed: a hub's proof is none of a worker."""
    with serving(tls=False) as hub:
        with socket.create_connection((hub.address.host, hub.address.port), timeout=WAIT_S) as raw:
            raw.sendall(pack(Hello(nonce())))
            shown = json.loads(frame(raw)[HEADER.size :])
            raw.sendall(pack(msgspec.structs.replace(WHO, proof=shown["proof"])))
            assert frame(raw) == b""
        assert nobody_came_in(hub, UNPROVEN)


ATTACKS = {
    b"\x00\x00\x00\x02{]": "sent what is no message",
    pack(WHO): UNPROVEN,
    pack(Hello(nonce())) + pack(WHO): UNPROVEN,
    b"\xff\xff\xff\xff": "announced a message that is too long",
    pack(Hello(nonce()))[:9]: "hung up in the middle of a message",
    b"": HUNG_UP,
}


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_what_strangers_do_is_on_record(tls: bool) -> None:
    """Of each kind the first and the tenth, and how many they were in the end."""
    with serving(tls) as hub:
        for raw in [*ATTACKS] * 10:
            with contextlib.ExitStack() as stack:
                sock = stack.enter_context(socket.create_connection((hub.address.host, hub.address.port), WAIT_S))
                if tls:
                    sock = stack.enter_context(client_tls().wrap_socket(sock))
                sock.sendall(raw)
                socket.socket.shutdown(sock, socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    while sock.recv(1000):
                        pass
        assert nobody_came_in(hub, *{*ATTACKS.values()}, *{*ATTACKS.values()})
        if tls:
            with socket.create_connection((hub.address.host, hub.address.port), WAIT_S) as sock:
                sock.sendall(pack(Hello(nonce())))
                assert sock.recv(1000) is not None
            assert nobody_came_in(hub, "did not come to terms over TLS")
        hub.hear_out(0.0)
        assert nobody_came_in(hub, UNPROVEN), "of the others, all are told already"


@pytest.mark.parametrize("answer", [b"[]", b"3", b"[" * 3000, b"{", b'"x"', b"\xff", b"{}"])
def test_a_stranger_answers_with_anything(answer: bytes) -> None:
    def serve(worker: socket.socket) -> None:
        frame(worker)
        worker.sendall(HEADER.pack(len(answer)) + answer)

    with listening(serve) as port, pytest.raises(CordeeError) as caught:
        connect(Address("127.0.0.1", port, TOKEN), WHO)
    assert isinstance(caught.value, SecurityError | RendezvousError)
