from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest

from cordee.core.errors import CordeeError, RendezvousError, SecurityError, WaitedTooLong
from cordee.core.events import WarningEvent
from cordee.core.world import World
from cordee.group.channel import Channel
from cordee.group.membership import Membership
from cordee.group.messages import Hello, Posted, Saving, Seat, Stop, Welcome, Who
from cordee.group.wire import Address, connect, nonce, pack, proof, proven
from cordee.runtime.coordinator import server
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.notices import Lost
from harness import DEADLINE_S

TOKEN = "a" * 64
WHO = Who("worker", "here", 0)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def hub(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    one = Hub(Address("127.0.0.1", 0, TOKEN, tls=request.param), expected=1)
    yield one
    one.close()


def with_token(address: Address, token: str) -> Address:
    return Address(address.host, address.port, token, address.tls)


def test_the_right_token_is_let_in_and_the_message_comes_through(hub: Hub) -> None:
    connection, welcome = connect(hub.address, WHO)
    assert welcome == Welcome({}, number=0)
    assert hub.notices.get(timeout=DEADLINE_S) == (0, msgspec.structs.replace(WHO, proof=ANY))
    connection.send(Posted([WarningEvent("hello")]))
    assert hub.notices.get(timeout=DEADLINE_S) == (0, WarningEvent("hello"))
    connection.send(Saving(3, 1.0))
    assert hub.notices.get(timeout=DEADLINE_S) == (0, Saving(3, 1.0))
    connection.close()
    worker, lost = hub.notices.get(timeout=DEADLINE_S)
    assert isinstance(lost, Lost) and (worker, lost.left) == (0, 0)


def test_a_peer_that_is_let_in_while_the_server_closes_does_not_hold_it_up(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launcher has been killed: other peers look for the next coordinator once this one is gone."""
    prove = server._prove

    async def prove_while_it_closes(*given: Any) -> Who:
        who = await prove(*given)
        hub._server._closing.set()
        await asyncio.sleep(0)
        return who

    monkeypatch.setattr(server, "_prove", prove_while_it_closes)
    with contextlib.suppress(CordeeError):  # it may hang up before its answer has come
        connect(hub.address, WHO)
    hub._server._thread.join(10.0)
    assert not hub._server._thread.is_alive()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"message": "ready", "committed": "many", "admits": False}, id="another type"),
        pytest.param({"message": "ready", "committed": 1}, id="a field is missing"),
        pytest.param({"message": "finish", "more": 1}, id="an unknown field"),
        pytest.param({"message": "hurry"}, id="an unknown message"),
        pytest.param({"message": "posted", "events": [{"event": "step", "step": -1}]}, id="an event out of bounds"),
        pytest.param(Stop("x"), id="not for the coordinator"),
    ],
)
def test_what_is_no_message_of_ours_is_a_defect(hub: Hub, message: object) -> None:
    connection, _ = connect(hub.address, WHO)
    connection.send(message)  # type: ignore[arg-type]
    assert hub.notices.get(timeout=DEADLINE_S) == (0, msgspec.structs.replace(WHO, proof=ANY))
    assert "a defect of Cordée" in str(hub.notices.get(timeout=DEADLINE_S)[1])
    connection.close()


def test_a_wrong_token_is_refused_by_the_worker_before_it_says_who_it_is(hub: Hub) -> None:
    with pytest.raises(SecurityError, match="token"):
        connect(with_token(hub.address, "b" * 64), WHO)
    assert hub.roster.alive == frozenset()


def test_the_hub_refuses_a_worker_that_does_not_know_the_token(hub: Hub) -> None:
    if hub.address.tls:
        pytest.skip("the raw client below speaks no TLS")
    with socket.create_connection((hub.address.host, hub.address.port), timeout=DEADLINE_S) as raw:
        raw.sendall(pack(Hello(nonce())))
        raw.recv(4096)
        raw.sendall(pack(msgspec.structs.replace(WHO, proof="0" * 64)))
        assert raw.recv(4096) == b""
    assert hub.roster.alive == frozenset()


def test_a_number_comes_once(hub: Hub) -> None:
    first, _ = connect(hub.address, WHO)
    with pytest.raises(RendezvousError, match="here already"):
        connect(hub.address, WHO)
    first.close()


def test_a_newcomer_that_is_not_let_in_leaves_and_the_run_goes_on(hub: Hub) -> None:
    hub.call(hub.coming.invite, Seat(3, World(0, 1, 0, 1, 0, 1, source="cordee"), joins=True))
    member = Membership(Channel(hub.address, 3, "here", joins=True), deadline_s=0.01)
    member.outside = True
    with pytest.raises(WaitedTooLong, match="worker 3 on here waited 0 s for a place among the others"):
        member.advance(0)
    member.channel.close()
    came, lost = [hub.notices.get(timeout=DEADLINE_S)[1] for _ in range(2)]  # and no `Stuck`, which would end the run
    assert isinstance(came, Who) and isinstance(lost, Lost) and not lost.member


def test_a_port_in_use_is_named(hub: Hub) -> None:
    with pytest.raises(RendezvousError, match=str(hub.address.port)):
        Hub(hub.address, expected=1)


def test_a_stranger_at_the_port_is_told_from_a_launcher() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    thread.start()
    with pytest.raises((SecurityError, RendezvousError, Exception)) as caught:
        connect(Address("127.0.0.1", listener.getsockname()[1], TOKEN), WHO, timeout_s=2)
    thread.join()
    listener.close()
    assert type(caught.value).__module__ == "cordee.core.errors"


def test_proofs_depend_on_token_side_certificate_and_nonces() -> None:
    base = proof(TOKEN, "hub", b"certificate", "1", "2")
    others = [
        proof("b" * 64, "hub", b"certificate", "1", "2"),
        proof(TOKEN, "worker", b"certificate", "1", "2"),
        proof(TOKEN, "hub", b"another", "1", "2"),
        proof(TOKEN, "hub", b"certificate", "2", "1"),
    ]
    assert base not in others
    assert proven(base, base)
    assert not any(proven(other, base) for other in [*others, "", "é"])


def test_an_address_does_not_show_its_token() -> None:
    address = Address("h", 1, TOKEN)
    assert TOKEN not in f"{address} {address!r}"
